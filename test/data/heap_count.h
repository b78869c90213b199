#pragma once
/// How often this test program has called `operator new`.

namespace lockstep::data {
long heap_allocations();
}
