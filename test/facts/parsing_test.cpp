// The parts that read reports, PTX and sources, on small texts of the same kind.
#include <doctest/doctest.h>

#include "facts/source_kernels.h"
#include "lockstep/core/error.h"
#include "lockstep/tools/facts/build.h"
#include "lockstep/tools/facts/document.h"
#include "lockstep/tools/facts/kernel_list.h"

using namespace lockstep;
using namespace lockstep::facts;

TEST_CASE("the report of ptxas") {
  const std::vector<Resources> report = parse_report(
      "ptxas info    : 0 bytes gmem, 8 bytes cmem[3]\n"
      "ptxas info    : Compiling entry function '_Z3oneILi2EEvPf' for 'sm_80'\n"
      "ptxas info    : Function properties for _Z3oneILi2EEvPf\n"
      "    40 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
      "ptxas info    : Used 56 registers, used 1 barriers, 256 bytes smem, 400 bytes cmem[0]\n"
      "ptxas info    : Compile time = 50.379 ms\n"
      "ptxas info    : Compiling entry function '_Z3twov' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Z3twov\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 8 registers, used 0 barriers\n"
      "ptxas info    : Function properties for helper\n"
      "    24 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n");
  REQUIRE(report.size() == 2);
  CHECK(report[0].symbol == "_Z3oneILi2EEvPf");
  CHECK(report[0].architecture == "sm_80");
  CHECK(report[0].registers == 56);
  CHECK(report[0].spills == 28);
  CHECK(report[0].stack == 40);
  CHECK(report[0].shared == 256);
  CHECK(report[1].architecture == "sm_90a");
  CHECK(report[1].registers == 8);
  CHECK(report[1].shared == 0);
  CHECK(report[1].spills == 8);  // what it calls is its own
  CHECK(report[1].stack == 24);

  CHECK_THROWS_AS(parse_report("Compiling entry function 'f' for 'sm_80'\n bytes stack frame"),
                  DataError);
}

namespace {

/// What is found in an entry of these lines.
Instructions instructions_in(const std::string& lines) {
  const Ptx ptx = parse_ptx(
      "//\n// Cuda compilation tools, release 13.0, V13.0.88\n//\n"
      ".version 9.0\n.target sm_90a\n\n"
      ".visible .entry before()\n{\n\tmma.sync.x;\n}\n"
      ".weak .entry kernel(\n\t.param .u64 kernel_param_0\n)\n{\n" +
      lines + "\n}\n.func helper()\n{\n\tld.global.v4.f32 {%f1}, [%rd1];\n}\n");
  CHECK(ptx.compiler == "13.0.88");
  CHECK(ptx.architecture == "sm_90a");
  CHECK(ptx.entries.size() == 2);
  return ptx.entries.at("kernel");
}

}  // namespace

TEST_CASE("loads of 16 bytes in PTX") {
  for (const std::string line :
       {"\tld.global.v4.f32 \t{%f1, %f2, %f3, %f4}, [%rd4];",
        "\tld.global.nc.v2.f64 {%fd1, %fd2}, [%rd4];", "\tld.v4.u32 {%r1, %r2, %r3, %r4}, [%rd4];",
        "\t@%p1 ld.global.nc.L1::no_allocate.v2.b64 {%rd1, %rd2}, [%rd4];",
        "\tcp.async.cg.shared.global [%r1], [%rd2], 16, %r3;"}) {
    CAPTURE(line);
    CHECK(instructions_in(line).loads_16);
  }
  for (const std::string line :
       {"\tld.global.f32 %f1, [%rd4];", "\tld.global.v2.f32 {%f1, %f2}, [%rd4];",
        "\tld.global.v4.u16 {%rs1, %rs2, %rs3, %rs4}, [%rd4];",
        "\tld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r4];",
        "\tld.local.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4];",
        "\tld.param.v4.f32 {%f1, %f2, %f3, %f4}, [kernel_param_0];",
        "\tst.global.v4.f32 [%rd4], {%f1, %f2, %f3, %f4};",
        "\tcp.async.ca.shared.global [%r1], [%rd2], 4, %r3;", ""}) {
    CAPTURE(line);
    CHECK_FALSE(instructions_in(line).loads_16);
  }
}

TEST_CASE("tensor cores and the copy engine in PTX") {
  // Assembly of the sources has blocks of its own, wherever they begin.
  const Instructions found = instructions_in(
      "{\n.reg .pred p;\n}\n\twgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%f1}, %rd1;\n"
      "\tcp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], "
      "[%rd1];");
  CHECK(found.wgmma);
  CHECK(found.tma);
  CHECK_FALSE(found.mma);
  CHECK_FALSE(found.loads_16);
  CHECK(instructions_in("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}").mma);
  CHECK_FALSE(instructions_in("\tcp.async.bulk.commit_group;").tma);
}

TEST_CASE("names of kernels") {
  CHECK(short_name("_ZN8lockstep7kernels43_GLOBAL__N__26564614_10_softmax_cu_4d4e8a5327log_softmax_"
                   "backward_kernelIdLi1ELi8ELb0EEEvPKT_S5_PS3_blii") ==
        "log_softmax_backward_kernel<double, 1, 8, false>");
  CHECK(short_name("_ZN8lockstep7kernels20reduce_chunks_kernelINS0_12ExponentialsIfLi4EEENS0_"
                   "4KeepINS0_6ExpSumIfEEEEEEvT_llT0_") ==
        "reduce_chunks_kernel<Exponentials<float, 4>, Keep<ExpSum<float>>>");
  CHECK(short_name("_ZN8lockstep3gpu11fill_kernelEPfl") == "fill_kernel");
  CHECK(short_name("plain_kernel") == "plain_kernel");
  Kernel kernel;
  kernel.name = "tree_reduce_kernel<float, 4>";
  CHECK(kernel.base() == "tree_reduce_kernel");
}

TEST_CASE("kernels in sources, and the comments above them") {
  const std::vector<SourceKernel> kernels = kernels_in(
      "/// Not a kernel: __global__ void example_kernel(int n);\n"
      "\n"
      "/// out (n) = x (n). 16-byte\n"
      "/// loads, and wgmma.\n"
      "template <class T,\n"
      "          bool first>\n"
      "__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(of(T) * 2, 1)\n"
      "    first_kernel(T* out, const T* x) {\n"
      "}\n"
      "int other;\n"
      "  __global__ void second_kernel() {}\n"
      "/// In parts <of two>\n"
      "__global__ void third() {}\n",
      "a.cu");
  REQUIRE(kernels.size() == 3);
  CHECK(kernels[0].name == "first_kernel");
  CHECK(kernels[0].source == "a.cu");
  CHECK(kernels[0].comment == "out (n) = x (n). 16-byte loads, and wgmma.");
  CHECK(kernels[0].claims("16-byte loads"));
  CHECK(kernels[0].claims("wgmma"));
  CHECK_FALSE(kernels[0].claims("mma"));
  CHECK(kernels[1].name == "second_kernel");
  CHECK(kernels[1].comment.empty());
  CHECK(kernels[2].name == "third");
  CHECK(kernels[2].comment == "In parts <of two>");
}

TEST_CASE("the list of kernels") {
  const std::vector<ListedKernel> list = parse_list(
      "# a comment\n\n"
      "a_kernel | kernels/cuda/a.cu | test/kernels/a_test.cpp | a: of all sizes\n"
      "b_kernel | kernels/cuda/b.cu|test/cuda/b_test.cpp | b | hopper\n");
  REQUIRE(list.size() == 2);
  CHECK(list[0].name == "a_kernel");
  CHECK(list[0].source == "kernels/cuda/a.cu");
  CHECK(list[0].test_file == "test/kernels/a_test.cpp");
  CHECK(list[0].test_case == "a: of all sizes");
  CHECK_FALSE(list[0].hopper);
  CHECK(list[1].test_file == "test/cuda/b_test.cpp");
  CHECK(list[1].hopper);
  for (const char* line : {"a | b | c", "a | b | c | d | e", "a | b | c | d | hopper | e"})
    CHECK_THROWS_AS(parse_list(line), DataError);
}

TEST_CASE("the document") {
  Build build{"13.0.88", {"sm_80", "sm_90a"}, {}};
  const auto add = [&](const char* name, const char* architecture, int registers, bool loads) {
    Kernel& kernel = build.kernels.emplace_back();
    kernel.source = "kernels/cuda/a.cu";
    kernel.name = name;
    kernel.architecture = architecture;
    kernel.registers = registers;
    kernel.instructions.loads_16 = loads;
  };
  add("a_kernel<float>", "sm_80", 30, true);
  add("a_kernel<float>", "sm_90a", 32, true);
  add("h_kernel", "sm_90a", 168, false);
  for (const char* name :
       {"m_kernel<1>", "m_kernel<2>", "m_kernel<3>", "m_kernel<4>", "m_kernel<5>"})
    for (const char* architecture : {"sm_80", "sm_90a"})
      add(name, architecture, 20 + name[9] - '0', name[9] == '4');
  const std::string text =
      document(build, {{"a_kernel", "k/a.cu", "test/k/a_test.cpp", "a", false}});
  for (const std::string line :
       {"\nnvcc 13.0.88, for sm_80 / sm_90a.\n", "\n## kernels/cuda/a.cu\n",
        "\n| `a_kernel<float>` | 30 / 32 | 0 | 0 | 0 | 16 B |\n",
        "\n| `h_kernel` | - / 168 | - / 0 | - / 0 | - / 0 |  |\n",
        "\n| `m_kernel`, 5 times | 21-25 | 0 | 0 | 0 | 16 B (1 of 5) |\n",
        "\n| `a_kernel` | k/a.cu | test/k/a_test.cpp: a |\n"}) {
    CAPTURE(line);
    CHECK(text.find(line) != std::string::npos);
  }
}
