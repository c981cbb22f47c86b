#include "base/digest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>

// Everything inline: the installed library then needs no other.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace stet::base {
namespace {

XXH3_state_t* as_state(std::byte* state) noexcept {
  return reinterpret_cast<XXH3_state_t*>(state);
}

Digest canonical(XXH128_hash_t hash) noexcept {
  XXH128_canonical_t out;
  XXH128_canonicalFromHash(&out, hash);
  Digest digest;
  std::copy_n(std::begin(out.digest), digest.bytes.size(), digest.bytes.begin());
  return digest;
}

}  // namespace

std::string to_text(const Digest& digest) {
  return fmt::format("{:02x}", fmt::join(digest.bytes, ""));
}

Digest digest_of(std::span<const std::byte> bytes) noexcept {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

Hasher::Hasher() noexcept {
  static_assert(sizeof(XXH3_state_t) <= kStateBytes && alignof(XXH3_state_t) <= 64);
  XXH3_128bits_reset(::new (state_.data()) XXH3_state_t);
}

void Hasher::update(std::span<const std::byte> bytes) noexcept {
  if (!bytes.empty()) XXH3_128bits_update(as_state(state_.data()), bytes.data(), bytes.size());
}

Digest Hasher::digest() const noexcept {
  return canonical(XXH3_128bits_digest(reinterpret_cast<const XXH3_state_t*>(state_.data())));
}

}  // namespace stet::base
