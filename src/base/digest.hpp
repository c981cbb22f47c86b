// XXH3-128 (Collet, https://github.com/Cyan4973/xxHash), streaming: finds damage and tells weights apart. It is no
// signature: whoever means to can make two inputs of one digest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stet::base {

/// 128 bits in XXH3's canonical order, most significant byte first: what `xxh128sum` prints.
struct Digest {
  std::array<std::uint8_t, 16> bytes{};
  friend bool operator==(const Digest&, const Digest&) = default;
};

/// 32 hexadecimal digits.
std::string to_text(const Digest& digest);

Digest digest_of(std::span<const std::byte> bytes) noexcept;

/// The digest of bytes that come in pieces; where they are cut does not matter.
class Hasher {
 public:
  Hasher() noexcept;
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void update(std::span<const std::byte> bytes) noexcept;
  /// Of all bytes so far.
  Digest digest() const noexcept;

 private:
  static constexpr std::size_t kStateBytes = 576;
  alignas(64) std::array<std::byte, kStateBytes> state_{};
};

}  // namespace stet::base
