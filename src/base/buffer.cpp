#include "base/buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace stet::base {
namespace {

// Weights are streamed from end to end for every token: pages of 2 MB take fewer faults to fill and fewer translations
// to read. Only whole ones inside the buffer are asked for, so that no memory is held beyond it. A refusal changes
// nothing but speed.
void ask_for_huge_pages(std::byte* p, std::size_t bytes) noexcept {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t skip = align_up(reinterpret_cast<std::uintptr_t>(p), kHuge) - reinterpret_cast<std::uintptr_t>(p);
  if (bytes < skip + kHuge) return;
  (void)::madvise(p + skip, (bytes - skip) / kHuge * kHuge, MADV_HUGEPAGE);
}

}  // namespace

void Buffer::Free::operator()(std::byte* p) const noexcept {
  ::operator delete[](p, std::align_val_t{kAlign});
}

Result<Buffer> Buffer::allocate(std::size_t bytes) {
  // Above PTRDIFF_MAX no object can exist, and sanitizers treat the request itself as a fault.
  auto* p = bytes > static_cast<std::size_t>(PTRDIFF_MAX)
                ? nullptr
                : static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlign}, std::nothrow));
  if (p == nullptr) return fail(Code::capacity, fmt::format("the system refused {} bytes of memory", bytes));
  ask_for_huge_pages(p, bytes);
  Buffer buffer;
  buffer.data_.reset(p);
  buffer.size_ = bytes;
  return buffer;
}

}  // namespace stet::base
