#include "base/buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace stet::base {
void Buffer::Free::operator()(std::byte* p) const noexcept {
  ::operator delete[](p, std::align_val_t{kAlign});
}

Result<Buffer> Buffer::allocate(std::size_t bytes) {
  // Above PTRDIFF_MAX no object can exist, and sanitizers treat the request itself as a fault.
  auto* p = bytes > static_cast<std::size_t>(PTRDIFF_MAX)
                ? nullptr
                : static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlign}, std::nothrow));
  if (p == nullptr) return fail(Code::capacity, fmt::format("the system refused {} bytes of memory", bytes));
  Buffer buffer;
  buffer.data_.reset(p);
  buffer.size_ = bytes;
  return buffer;
}

void Buffer::prefer_huge_pages() noexcept {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(data());
  const std::size_t skip = align_up(address, kHuge) - address;
  if (size_ < skip + kHuge) return;
  (void)::madvise(data() + skip, (size_ - skip) / kHuge * kHuge, MADV_HUGEPAGE);
}

}  // namespace stet::base
