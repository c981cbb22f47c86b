#include "kv/allocations.hpp"

#include <cstdlib>
#include <new>

namespace stet::kv_test {
bool refuse_small_objects = false;
int allocations = 0;
}  // namespace stet::kv_test

using stet::kv_test::allocations;
using stet::kv_test::refuse_small_objects;

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (refuse_small_objects) return nullptr;
  ++allocations;
  return std::malloc(bytes);
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
