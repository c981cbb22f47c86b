// The one door through which a cache gets memory, so that what it reserves is counted and not estimated.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "base/buffer.hpp"
#include "stet/result.hpp"

namespace stet::kv {

using AllocateFn = std::function<Result<base::Buffer>(std::size_t bytes)>;

/// A table of fixed length inside a counted buffer.
template <class T>
class Array {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= base::kAlign);

 public:
  Array() = default;
  Array(base::Buffer buffer, std::size_t count) : buffer_(std::move(buffer)), count_(count) {
    std::uninitialized_value_construct_n(buffer_.as<T>(), count_);
  }

  std::span<T> all() noexcept { return {buffer_.as<T>(), count_}; }
  std::span<const T> all() const noexcept { return {buffer_.as<T>(), count_}; }
  T& operator[](std::size_t i) noexcept { return buffer_.as<T>()[i]; }
  const T& operator[](std::size_t i) const noexcept { return buffer_.as<T>()[i]; }
  std::size_t size() const noexcept { return count_; }

 private:
  base::Buffer buffer_;
  std::size_t count_ = 0;
};

/// Hands out buffers and counts their bytes. Nothing is given back before the cache ends, so the count only grows.
class Allocator {
 public:
  /// Tests pass a function that refuses its n-th call.
  explicit Allocator(AllocateFn allocate = base::Buffer::allocate) : allocate_(std::move(allocate)) {}

  /// Uninitialised. The error is the allocating function's own (Code::capacity).
  Result<base::Buffer> bytes(std::size_t count) {
    auto buffer = allocate_(count);
    if (buffer) handed_out_ += buffer->size();
    return buffer;
  }

  /// `count` value-initialised elements.
  template <class T>
  Result<Array<T>> array(std::size_t count) {
    auto buffer = bytes(count * sizeof(T));
    if (!buffer) return pass(buffer);
    return Array<T>(std::move(*buffer), count);
  }

  std::size_t handed_out() const noexcept { return handed_out_; }

 private:
  AllocateFn allocate_;
  std::size_t handed_out_ = 0;
};

}  // namespace stet::kv
