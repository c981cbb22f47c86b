// What tests of the vector kernels share: the tables that they hold to kernels/ref, values with all that floats have,
// and equality of bits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernels.hpp"

namespace stet::kernels {

template <class T>
const Table<T>& ref_table() {
  return targets().back().table<T>();
}

template <class T>
std::vector<const Table<T>*> simd_tables() {
  std::vector<const Table<T>*> tables;
  for (const Target& target : targets().first(targets().size() - 1)) tables.push_back(&target.table<T>());
  return tables;
}

// Random values with everything that floats have among them: zeros of both signs, denormals, and now and then
// infinities.
template <class T>
std::vector<T> mixed(std::size_t n, unsigned seed, bool infinities = false) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<T> values(n);
  for (T& v : values) {
    switch (engine() % 16) {
      case 0:
        v = engine() % 2 == 0 ? T(0) : -T(0);
        break;
      case 1:
        v = static_cast<T>(uniform(engine)) * std::numeric_limits<T>::min();
        break;
      case 2:
        v = infinities && engine() % 8 == 0 ? std::numeric_limits<T>::infinity()
                                            : static_cast<T>(uniform(engine) * 1e4);
        break;
      default:
        v = static_cast<T>(uniform(engine));
    }
  }
  return values;
}

// Equal bits; any NaN equals any NaN, since the contract leaves their sign and payload open.
template <class T>
testing::AssertionResult same(const std::vector<T>& a, const std::vector<T>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) {
      return testing::AssertionFailure() << "element " << i << " of " << a.size() << ": " << a[i] << " and " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

template <class T>
class Simd : public testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(simd_tables<T>().empty()) << "no vector kernels run on this CPU"; }
};
using Types = testing::Types<float, double>;

}  // namespace stet::kernels
