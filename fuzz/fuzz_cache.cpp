// Any bytes as operations on caches of every layout at once, held to the model of tests/kv/driver.hpp. The first eight
// choose specs, options and values, the others the operations.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>

#include "kv/driver.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stet::kv_test;
  std::uint64_t seed = 0;
  if (size < sizeof seed) return 0;
  std::memcpy(&seed, data, sizeof seed);
  try {
    Driver driver(seed, Choices(std::span(data, size).subspan(sizeof seed)));
    driver.run(std::numeric_limits<int>::max());
  } catch (const Failed& failed) {
    std::fprintf(stderr, "%s\n", failed.what());
    std::abort();
  }
  return 0;
}
