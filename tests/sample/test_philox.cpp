// Random numbers: the published known answers, and the plainest statistics.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "sample/sampler.hpp"
#include "sample/support.hpp"

namespace stet::sample_test {
namespace {

using sample::philox;
using sample::uniform;
using Words = std::array<std::uint32_t, 4>;

// Random123 (D. E. Shaw Research), tests/kat_vectors: philox4x32 10.
TEST(Philox, GivesRandom123sKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The same vectors: the key is the seed, the counter sequence and position, low words first; the number is the first
// two words' upper 53 bits.
TEST(Uniform, IsKeyedBySeedSequenceAndPosition) {
  EXPECT_EQ(uniform(0, 0, 0), static_cast<double>(0xe169c58d6627e8d5 >> 11) * 0x1p-53);
  EXPECT_EQ(uniform(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            static_cast<double>(0x94fdccebd16cfe09 >> 11) * 0x1p-53);
}

// Fills 64 equal bins and counts how often each of the 53 bits is set, along each of the three keys.
TEST(Uniform, IsFlatAlongEveryKey) {
  constexpr int kDraws = 100'000, kBins = 64;
  const std::vector<double> flat(kBins, 1.0 / kBins);
  for (int along = 0; along < 3; ++along) {
    std::vector<int> bins(kBins), bits(53);
    for (int i = 0; i < kDraws; ++i) {
      const auto n = static_cast<std::uint64_t>(i);
      const double u = uniform(along == 0 ? n : 7, along == 1 ? n : 0, along == 2 ? i : 5);
      ASSERT_TRUE(u >= 0 && u < 1);
      ++bins[static_cast<std::size_t>(u * kBins)];
      const auto mantissa = static_cast<std::uint64_t>(u * 0x1p53);
      for (std::size_t bit = 0; bit < bits.size(); ++bit) bits[bit] += static_cast<int>(mantissa >> bit & 1);
    }
    EXPECT_LT(chi_square(bins, flat), chi_square_limit(kBins - 1)) << along;
    for (const int set : bits) {
      const int pair[] = {set, kDraws - set};
      EXPECT_LT(chi_square(pair, std::vector<double>{0.5, 0.5}), chi_square_limit(1)) << along;
    }
  }
}

}  // namespace
}  // namespace stet::sample_test
