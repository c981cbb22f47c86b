// The header of a .safetensors file (format: github.com/huggingface/safetensors, README "Format"), checked completely.
// Apart from the file, so that a fuzzer can reach it with bytes alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stet/result.hpp"
#include "weights/source.hpp"

namespace stet::weights {

/// The longest header that the reference implementation reads.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct StoredTensor {
  TensorInfo info;
  std::uint64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};

/// The tensors of a header's JSON text, in the order of their offsets, which tile [0, data_size) without gap or
/// overlap. Code::corrupt names the tensor and what is wrong with it; Code::unsupported a type that the format's
/// specification lacks or that packs values within bytes. `where` begins every error.
Result<std::vector<StoredTensor>> parse_safetensors_header(std::string_view json, std::uint64_t data_size,
                                                           const std::string& where);

/// The length that the first 8 bytes of a file state, checked against the file's size.
Result<std::uint64_t> parse_header_length(std::string_view first8, std::uint64_t file_size, const std::string& where);

}  // namespace stet::weights
