#pragma once
/// How often this program has called `operator new`. Linking heap_count.cpp replaces it.

long heap_allocations();
