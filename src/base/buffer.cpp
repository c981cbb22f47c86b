#include "base/buffer.hpp"

#include <fmt/format.h>

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

}  // namespace stet::base
