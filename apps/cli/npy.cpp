#include "npy.hpp"

#include <fmt/format.h>

#include <bit>

namespace stet::cli {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

std::string npy_header(const Logits& logits) {
  std::string dict = fmt::format("{{'descr': '<f{}', 'fortran_order': False, 'shape': ({}, {}), }}",
                                 size_of(logits.type), logits.rows, logits.vocab);
  // Magic, version, length and dict together fill a multiple of 64 bytes, so that the values are aligned when mapped.
  constexpr std::size_t kBefore = 10, kAlign = 64;
  dict.append((kAlign - (kBefore + dict.size() + 1) % kAlign) % kAlign, ' ');
  dict += '\n';
  std::string header = "\x93NUMPY";
  header += '\x01';
  header += '\x00';
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace stet::cli
