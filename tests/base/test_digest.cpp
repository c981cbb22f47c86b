// Digests are XXH3-128 in canonical order: what the program xxh128sum (of xxHash 0.8.1) prints for the same bytes.
#include <gtest/gtest.h>

#include <vector>

#include "base/digest.hpp"

namespace stet::base {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Digest, IsWhatXxh128sumPrints) {
  std::vector<std::byte> many(100000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::byte>(i * 7 % 251);
  EXPECT_EQ(to_text(digest_of({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(to_text(digest_of(bytes("a"))), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(to_text(digest_of(many)), "70227b16fd5f74ef17a701075a95b432");
}

TEST(Digest, DoesNotDependOnWhereBytesAreCut) {
  std::vector<std::byte> many(5000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::byte>(i * i);
  const std::span<const std::byte> all = many;
  for (const std::size_t piece : {1U, 7U, 64U, 255U, 1024U, 4999U}) {
    Hasher hasher;
    for (std::size_t at = 0; at < all.size(); at += piece) {
      hasher.update(all.subspan(at, std::min(piece, all.size() - at)));
    }
    EXPECT_EQ(hasher.digest(), digest_of(all)) << piece;
  }
  EXPECT_EQ(Hasher().digest(), digest_of({}));
}

}  // namespace
}  // namespace stet::base
