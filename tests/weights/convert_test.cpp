#include "weights/convert.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "support.hpp"

namespace stet::weights {
namespace {

std::uint32_t pattern_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

/// The value of a pattern by the definition of IEEE 754: sign, exponent, fraction. Not for NaN.
double by_definition(unsigned bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = bits & ((1U << fraction_bits) - 1);
  const double sign = bits >> (exponent_bits + fraction_bits) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(1 + std::ldexp(fraction, -fraction_bits), exponent - bias);
}

/// All 65536 patterns, as floats and as doubles.
void check_all_patterns(DType type, int exponent_bits, int fraction_bits) {
  std::vector<std::uint16_t> patterns(65536);
  for (unsigned i = 0; i < 65536; ++i) patterns[i] = static_cast<std::uint16_t>(i);
  const std::string raw = bytes_of(patterns);
  std::vector<float> f32(65536);
  std::vector<double> f64(65536);
  convert(type, std::as_bytes(std::span(raw)), std::span(f32));
  convert(type, std::as_bytes(std::span(raw)), std::span(f64));
  for (unsigned i = 0; i < 65536; ++i) {
    const std::uint32_t got = pattern_of(f32[i]);
    const unsigned exponent = (i >> fraction_bits) & ((1U << exponent_bits) - 1);
    const unsigned fraction = i & ((1U << fraction_bits) - 1);
    if (exponent == (1U << exponent_bits) - 1 && fraction != 0) {
      // A NaN keeps sign and payload, left-aligned.
      ASSERT_EQ(got, (i & 0x8000U) << 16 | 0x7F800000U | fraction << (23 - fraction_bits)) << i;
      ASSERT_TRUE(std::isnan(f64[i])) << i;
    } else {
      const double expected = by_definition(i, exponent_bits, fraction_bits);
      ASSERT_EQ(got, pattern_of(static_cast<float>(expected))) << i;
      ASSERT_EQ(std::bit_cast<std::uint64_t>(f64[i]), std::bit_cast<std::uint64_t>(expected)) << i;
    }
  }
}

TEST(Convert, EveryHalf) {
  check_all_patterns(DType::f16, 5, 10);
}
TEST(Convert, EveryBfloat) {
  check_all_patterns(DType::bf16, 8, 7);
}

TEST(Convert, KnownHalves) {
  const std::string raw = bytes_of<std::uint16_t>({0x3C00, 0x3555, 0x7BFF, 0x0001, 0x03FF, 0x0400, 0x8000});
  std::vector<float> f(7);
  convert(DType::f16, std::as_bytes(std::span(raw)), std::span(f));
  EXPECT_EQ(f, (std::vector<float>{1, 0x1.554p-2F, 65504, 0x1p-24F, 0x1.ff8p-15F, 0x1p-14F, 0}));
  EXPECT_EQ(pattern_of(f[6]), 0x80000000U);
}

std::vector<float> rounded(const std::vector<double>& values) {
  const std::string raw = bytes_of(values);
  std::vector<float> out(values.size());
  convert(DType::f64, std::as_bytes(std::span(raw)), std::span(out));
  return out;
}

TEST(Convert, DoublesRoundToNearestEven) {
  const auto f = rounded({1 + 0x1p-24, 1 + 0x1.8p-23, 1 + 0x1p-24 + 0x1p-52, -1 - 0x1p-24, 0x1p-150, 0x1.8p-149,
                          0x1.00001p-150, std::numeric_limits<double>::max(), 0x1.fffffefp127, 0x1.ffffffp127, -0.0});
  EXPECT_EQ(f[0], 1.0F);          // a tie, to the even below
  EXPECT_EQ(f[1], 1 + 0x1p-22F);  // a tie, to the even above
  EXPECT_EQ(f[2], 1 + 0x1p-23F);  // just above a tie
  EXPECT_EQ(f[3], -1.0F);
  EXPECT_EQ(f[4], 0.0F);       // half the smallest subnormal: a tie, to zero
  EXPECT_EQ(f[5], 0x1p-148F);  // a tie between subnormals
  EXPECT_EQ(f[6], 0x1p-149F);
  EXPECT_TRUE(std::isinf(f[7]));
  EXPECT_EQ(f[8], std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isinf(f[9]));  // a tie between the largest float and 2^128
  EXPECT_EQ(pattern_of(f[10]), 0x80000000U);
}

// strtof is correctly rounded and knows nothing of double.
TEST(Convert, DoublesRoundAsStrtofDoes) {
  std::mt19937_64 random(1);
  std::vector<double> values;
  while (values.size() < 20000) {
    const double fraction = 1 + std::ldexp(static_cast<double>(random() >> 12), -52);
    values.push_back(std::ldexp(fraction, static_cast<int>(random() % 290) - 155) * (random() % 2 == 0 ? 1 : -1));
  }
  const auto got = rounded(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    char text[64];
    std::snprintf(text, sizeof text, "%a", values[i]);
    ASSERT_EQ(pattern_of(got[i]), pattern_of(std::strtof(text, nullptr))) << text;
  }
}

TEST(Convert, FloatsAreExactAndMayLieAnywhere) {
  const std::vector<float> values = {1.5F, -0.0F, 0x1p-149F, std::numeric_limits<float>::max(), 0.1F};
  const std::string raw = "x" + bytes_of(values);  // an odd address
  std::vector<double> f64(values.size());
  convert(DType::f32, std::as_bytes(std::span(raw)).subspan(1), std::span(f64));
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(f64[i], double{values[i]});
}

}  // namespace
}  // namespace stet::weights
