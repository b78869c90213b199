"""Which requests the pictures of the ladder show. draw.py draws them.

A panel names an operation and a kernel of `./lockstep count`, and of its requests the kind, a part
of the source's name, and, where there are several, `bytes`, the `memory` (of those that such
requests access: the tensor, or the array in shared memory) and the number of the `request`.
`rows`: (bytes of a row, others) shows what the same lanes would do if rows had another length.
"""

SIZE = " 256x256x64 "


def panel(rung, layout, kernel, kind, file, says, **more):
    return {"operation": rung + SIZE + layout, "kernel": kernel, "kind": kind, "file": file,
            "says": says, **more}


def of(rung, kernel):
    """panel() of one rung."""
    return lambda layout, kind, file, says, **more: panel(rung, layout, kernel, kind, file, says,
                                                          **more)


naive = of("gemm_01_naive_f32", "gemm_naive_kernel")
coalesced = of("gemm_02_coalesced_f32", "gemm_coalesced_kernel")
shared = of("gemm_03_shared_f32", "gemm_shared_kernel")
tile_1d = of("gemm_04_tile_1d_f32", "gemm_tile_1d_kernel")
tile_2d = of("gemm_05_tile_2d_f32", "gemm_tile_2d_kernel")
vectorized = of("gemm_06_vectorized_f32", "gemm_vectorized_kernel")
warp_tile = of("gemm_07_warp_tile_f32", "gemm_warp_tile_kernel")
double_buffered = of("gemm_08_double_buffered_f32", "gemm_double_buffered_kernel")
tensor_tf32 = of("gemm_09_tensor_tf32_tf32", "gemm_tensor_tf32_kernel")
tensor_bf16 = of("gemm_10_tensor_bf16_bf16", "gemm_tensor_bf16_kernel")
hopper_bf16 = of("gemm_11_hopper_bf16_bf16_wide", "hopper_product_kernel")
hopper_tf32 = of("gemm_12_hopper_tf32_tf32_wide", "hopper_product_kernel")
turn = of("gemm_12_hopper_tf32_tf32", "hopper_turn_kernel")


def sums(kind, file, says, **more):
    return {"operation": "sum_rows 256x1024", "kernel": "sum_middle_kernel", "kind": kind,
            "file": file, "says": says, **more}


NN, NT, TN = "NN", "NT", "TN"
LOAD, STORE = "global load", "global store"
SHARED_LOAD, SHARED_STORE = "shared load", "shared store"
COPY_TO_SHARED = "cp.async, shared"

PICTURES = {
    "01-naive": ("Rung 1: the sectors of a warp's loads and of its store", [
        naive(NN, LOAD, "01_naive", "a: 16 rows, one word of each", memory=1),
        naive(NN, LOAD, "01_naive", "b: two words, each for 16 lanes", memory=0),
        naive(NN, STORE, "operand.cuh", "c: 16 rows, two words of each"),
    ]),
    "02-coalesced": ("Rung 2: the sectors of a warp's loads and of its store", [
        coalesced(NN, LOAD, "02_coalesced", "a: one word for all", memory=1),
        coalesced(NN, LOAD, "02_coalesced", "b: 32 neighbours", memory=0),
        coalesced(NN, STORE, "operand.cuh", "c: 32 neighbours"),
        coalesced(NT, LOAD, "02_coalesced", "b, if it is transposed: 32 rows", memory=0),
    ]),
    "03-shared": ("Rung 3: a tile on its way into shared memory, and out", [
        shared(NN, LOAD, "operand.cuh", "a, from memory: a row of the tile", memory=0),
        shared(NN, SHARED_STORE, "operand.cuh", "a, into the tile: a column, rows of 33 words",
               memory=1),
        shared(NN, SHARED_STORE, "operand.cuh", "The same, if rows had 32 words", memory=1,
               rows=(132, 128), most=4),
        shared(NN, SHARED_LOAD, "03_shared", "a, for the product: one word for all", memory=1),
        shared(NN, SHARED_LOAD, "03_shared", "b, for the product: 32 words", memory=0),
    ]),
    "04-tile-1d": ("Rung 4: what a warp reads of shared memory at one depth", [
        tile_1d(NN, SHARED_LOAD, "04_tile_1d", "b: once, then kept in a register", memory=0),
        tile_1d(NN, SHARED_LOAD, "04_tile_1d", "a: the first of eight words", memory=1),
        tile_1d(NN, SHARED_LOAD, "04_tile_1d", "a: the second", memory=1, request=1),
    ]),
    "05-tile-2d": ("Rung 5: what a warp reads of shared memory, and how it stores c", [
        tile_2d(NN, SHARED_LOAD, "05_tile_2d", "a: two words, each for 16 lanes", memory=0),
        tile_2d(NN, SHARED_LOAD, "05_tile_2d", "b: every eighth word", memory=1),
        tile_2d(NN, STORE, "operand.cuh", "c: every eighth word of two rows"),
    ]),
    "06-vectorized": ("Rung 6: what a warp reads of shared memory, and how it stores c", [
        vectorized(NN, SHARED_LOAD, "common.cuh", "a: two quads, each for 16 lanes", memory=0),
        vectorized(NN, SHARED_LOAD, "common.cuh", "b: 16 quads that are neighbours", memory=1),
        vectorized(NN, STORE, "quads.cuh", "c: quads of two rows"),
    ]),
    "07-warp-tile": ("Rung 7: what a warp reads of shared memory", [
        warp_tile(NN, SHARED_LOAD, "common.cuh", "a: four quads, each for 8 lanes", memory=0),
        warp_tile(NN, SHARED_LOAD, "common.cuh", "b: eight quads, each for 4 lanes", memory=1),
    ]),
    "08-double-buffered": ("Rung 8: asynchronous copies into shared memory", [
        double_buffered(NN, COPY_TO_SHARED, "tile_copier",
                        "a: 4 bytes each, transposed on the way", memory=0, bytes=4),
        double_buffered(NN, COPY_TO_SHARED, "tile_copier", "b: 16 bytes each", bytes=16),
    ]),
    "09-tensor-tf32": ("Rung 9: what mma.m16n8k8 wants, and where it lies", [
        tensor_tf32(NT, SHARED_LOAD, "09_tensor", "A fragment, rows of 20 words"),
        tensor_tf32(NT, SHARED_LOAD, "09_tensor", "The same, if rows had 16 words",
                    rows=(80, 64)),
        tensor_tf32(NT, COPY_TO_SHARED, "tile_copier", "The price: a copy into rows of 20 words"),
    ]),
    "10-tensor-bf16": ("Rung 10: the rows that ldmatrix reads", [
        tensor_bf16(NT, SHARED_LOAD, "10_tensor", "Four matrices, rows of 80 bytes"),
        tensor_bf16(NT, SHARED_LOAD, "10_tensor", "The same, if rows had 64 bytes",
                    rows=(80, 64)),
        tensor_bf16(NT, STORE, "common.cuh", "c: four neighbours per lane"),
    ]),
    "11-swizzle": ("Rung 11: the first rows of a panel in shared memory", [
        hopper_bf16(NN, "box", "", "As rows of 128 bytes would lie: one column, one place",
                    plain=True),
        hopper_bf16(NN, "box", "", "As the copy engine puts them: chunk c of row r at c xor r"),
    ]),
    "11-store": ("Rung 11: a patch of c on its way out of a warp", [
        hopper_bf16(NN, SHARED_STORE, "store.cuh", "Pairs from the accumulators"),
        hopper_bf16(NN, SHARED_LOAD, "store.cuh", "Rows of 128 bytes, 16 bytes per lane"),
        hopper_bf16(NN, STORE, "store.cuh", "The same, into c"),
    ]),
    "12-turn": ("Rung 12: a matrix is turned over", [
        turn(NN, SHARED_STORE, "12_hopper", "A row goes into the tile"),
        turn(NN, SHARED_LOAD, "12_hopper", "A column comes out, rows of 33 words"),
        turn(NN, STORE, "12_hopper", "And is a row of the result"),
    ]),
    "sum-rows": ("sum_rows: threads below each other add up in shared memory", [
        sums(SHARED_STORE, "common.cuh", "The four sums of a thread, written as one"),
        sums(SHARED_LOAD, "common.cuh", "And read as one"),
        sums(STORE, "common.cuh", "The results"),
    ]),
}
