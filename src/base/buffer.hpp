// Memory for numbers: aligned to cache lines, owned, never copied by accident.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "stet/result.hpp"

namespace stet::base {

inline constexpr std::size_t kAlign = 64;

constexpr std::size_t align_up(std::size_t n, std::size_t to = kAlign) noexcept {
  return (n + to - 1) / to * to;
}

class Buffer {
 public:
  Buffer() = default;
  /// Uninitialised. Code::capacity names the size when the system refuses.
  static Result<Buffer> allocate(std::size_t bytes);

  /// Asks for pages of 2 MB, before the first use: for what is streamed from end to end again and again. Only whole
  /// ones inside the buffer, so that no memory is held beyond it; a refusal changes nothing but speed. Not for memory
  /// that is used here and there: each touch would hold 2 MB.
  void prefer_huge_pages() noexcept;

  std::byte* data() noexcept { return data_.get(); }
  const std::byte* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return size_; }

  template <class T>
  T* as() noexcept {
    return reinterpret_cast<T*>(data_.get());
  }
  template <class T>
  const T* as() const noexcept {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t size_ = 0;
};

}  // namespace stet::base
