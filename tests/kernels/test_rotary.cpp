// Sine, cosine and logarithm against long double, and the frequencies of rotary positions against their formulas.
#include "kernels/rotary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace stet::kernels {
namespace {

double ulps(double x, long double truth) {
  const double rounded = std::abs(static_cast<double>(truth));
  const double ulp = std::nextafter(rounded, INFINITY) - rounded;
  return static_cast<double>(std::abs((static_cast<long double>(x) - truth) / static_cast<long double>(ulp)));
}

TEST(SinCos, AreWithinTwoUlp) {
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<double> exponent(-20, 20);
  double worst = 0;
  const auto check = [&](double x) {
    const auto [s, c] = sin_cos(x);
    worst = std::max({worst, ulps(s, sinl(x)), ulps(c, cosl(x))});
  };
  for (int i = 0; i < 500'000; ++i) check(std::exp2(exponent(engine)) * 0.9);
  for (int n = 1; n < 20'000; ++n) {
    // As near to a zero of one of them as a double can be.
    const double x = static_cast<double>(n * 1.57079632679489661923L);
    check(x);
    check(std::nextafter(x, 0));
  }
  EXPECT_LT(worst, 2);
  EXPECT_EQ(sin_cos(0).sin, 0);
  EXPECT_EQ(sin_cos(0).cos, 1);
}

TEST(Log, IsWithinTwoUlp) {
  std::mt19937_64 engine(2);
  std::uniform_real_distribution<double> exponent(-300, 300);
  double worst = 0;
  for (int i = 0; i < 500'000; ++i) {
    const double x = std::exp2(exponent(engine));
    if (std::abs(x - 1) > 1e-3) worst = std::max(worst, ulps(log(x), logl(x)));
  }
  EXPECT_LT(worst, 2);
  EXPECT_EQ(log(1), 0);
}

TEST(Rope, FrequenciesFollowTheFormula) {
  for (const double theta : {10000.0, 500000.0, 1e6, 50.0}) {
    Rope rope;
    rope.theta = theta;
    const auto f = rope_frequencies(rope, 128);
    ASSERT_EQ(f.size(), 64U);
    EXPECT_EQ(f[0], 1);
    for (int i = 0; i < 64; ++i) {
      const long double truth = powl(static_cast<long double>(theta), -2.0L * i / 128);
      EXPECT_LT(std::abs(static_cast<double>((f[i] - truth) / truth)), 4e-15) << theta << " " << i;
    }
    rope.scaling = Rope::Scaling::linear;
    rope.factor = 4;
    for (int i = 0; i < 64; ++i) EXPECT_EQ(rope_frequencies(rope, 128)[i], f[i] / 4);
  }
}

TEST(Rope, Llama3KeepsShortWavelengthsAndStretchesLongOnes) {
  Rope rope;
  rope.theta = 500000;
  const auto plain = rope_frequencies(rope, 64);
  rope.scaling = Rope::Scaling::llama3;
  rope.factor = 32;
  rope.low_frequency = 1;
  rope.high_frequency = 4;
  rope.original_context = 8192;
  const auto scaled = rope_frequencies(rope, 64);
  int kept = 0, mixed = 0, stretched = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double turns = 8192 * plain[i] / (2 * M_PI);  // in the original context
    if (turns > 4) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (turns < 1) {
      EXPECT_EQ(scaled[i], plain[i] / 32);
      ++stretched;
    } else {
      const double smooth = (turns - 1) / 3;
      EXPECT_NEAR(scaled[i], plain[i] * (smooth + (1 - smooth) / 32), 1e-15);
      ++mixed;
    }
  }
  EXPECT_GT(kept, 5);
  EXPECT_GT(mixed, 0);
  EXPECT_GT(stretched, 5);
}

TEST(Rope, AnglesAreRoundedOnce) {
  const auto f = rope_frequencies({}, 8);
  float cos[4], sin[4];
  rope_angles(f, 1000, cos, sin);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(cos[i], static_cast<float>(cosl(1000.0L * f[i])));
    EXPECT_EQ(sin[i], static_cast<float>(sinl(1000.0L * f[i])));
  }
}

}  // namespace
}  // namespace stet::kernels
