#pragma once
/// CUDA's short vectors. Their sizes and alignments are those of the CUDA C++ Programming Guide,
/// section "Built-in Vector Types"; `may_alias` because kernels read any array through them.

struct [[gnu::may_alias]] alignas(2) char2 {
  signed char x, y;
};
struct [[gnu::may_alias]] alignas(4) char4 {
  signed char x, y, z, w;
};
struct [[gnu::may_alias]] alignas(2) uchar2 {
  unsigned char x, y;
};
struct [[gnu::may_alias]] alignas(4) uchar4 {
  unsigned char x, y, z, w;
};
struct [[gnu::may_alias]] alignas(4) short2 {
  short x, y;
};
struct [[gnu::may_alias]] alignas(8) short4 {
  short x, y, z, w;
};
struct [[gnu::may_alias]] alignas(4) ushort2 {
  unsigned short x, y;
};
struct [[gnu::may_alias]] alignas(8) ushort4 {
  unsigned short x, y, z, w;
};
struct [[gnu::may_alias]] alignas(8) int2 {
  int x, y;
};
struct [[gnu::may_alias]] int3 {
  int x, y, z;
};
struct [[gnu::may_alias]] alignas(16) int4 {
  int x, y, z, w;
};
struct [[gnu::may_alias]] alignas(8) uint2 {
  unsigned x, y;
};
struct [[gnu::may_alias]] uint3 {
  unsigned x, y, z;
};
struct [[gnu::may_alias]] alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct [[gnu::may_alias]] alignas(16) longlong2 {
  long long x, y;
};
struct [[gnu::may_alias]] alignas(16) ulonglong2 {
  unsigned long long x, y;
};
struct [[gnu::may_alias]] alignas(8) float2 {
  float x, y;
};
struct [[gnu::may_alias]] float3 {
  float x, y, z;
};
struct [[gnu::may_alias]] alignas(16) float4 {
  float x, y, z, w;
};
struct [[gnu::may_alias]] alignas(16) double2 {
  double x, y;
};

constexpr char2 make_char2(signed char x, signed char y) { return {x, y}; }
constexpr uchar2 make_uchar2(unsigned char x, unsigned char y) { return {x, y}; }
constexpr uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) {
  return {x, y, z, w};
}
constexpr short2 make_short2(short x, short y) { return {x, y}; }
constexpr ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
constexpr ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z,
                               unsigned short w) {
  return {x, y, z, w};
}
constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int3 make_int3(int x, int y, int z) { return {x, y, z}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
constexpr ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float3 make_float3(float x, float y, float z) { return {x, y, z}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr double2 make_double2(double x, double y) { return {x, y}; }

/// Sizes of a grid or a block; what is not given is 1.
struct dim3 {
  unsigned x, y, z;

  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 size) : x(size.x), y(size.y), z(size.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
