#include "weights/printable.hpp"

#include <fmt/format.h>

namespace stet::weights {

std::string printable(std::string_view text) {
  constexpr std::size_t kMost = 120;
  std::string out;
  for (const char c : text) {
    if (out.size() >= kMost) return out + "...";
    if (c >= 0x20 && c < 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace stet::weights
