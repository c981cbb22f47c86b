// What the tests of saved caches and of the prefix index share: caches whose rows follow from the tokens before them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/support.hpp"
#include "stet/cache.hpp"

namespace stet::kv_test {

namespace fs = std::filesystem;

using Tokens = std::vector<TokenId>;

/// A folder of its own for each test, gone after it.
class Folder {
 public:
  Folder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string("stet-") + test->test_suite_name() + "-" + test->name();
    for (char& c : name) c = c == '/' ? '_' : c;
    path_ = fs::path(testing::TempDir()) / name;
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  fs::path operator/(const char* name) const { return path_ / name; }
  /// Files in it, temporary ones too.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename().string());
    return names;
  }

 private:
  fs::path path_;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A number that follows from the tokens up to a position, as a model's rows do.
inline double value_after(std::span<const TokenId> tokens, int layer, int head, int d, bool key) {
  std::uint64_t h = static_cast<std::uint64_t>(layer * 64 + head * 16 + d * 2 + (key ? 1 : 0)) + 1;
  for (const TokenId id : tokens) h = (h ^ static_cast<std::uint64_t>(id + 7)) * 0x9E3779B97F4A7C15U + (h >> 29);
  return static_cast<double>(static_cast<std::int64_t>(h) >> 40) / 0x1p20;
}

/// Appends rows for `more` to a sequence that holds those of `tokens`.
inline Result<void> append(Cache& cache, Seq seq, Tokens& tokens, std::span<const TokenId> more) {
  const Append append{seq, static_cast<int>(more.size())};
  auto step = cache.begin({&append, 1});
  if (!step) return pass(step);
  const std::size_t before = tokens.size();
  tokens.insert(tokens.end(), more.begin(), more.end());
  const auto& layers = cache.spec().layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::vector<double> k, v;
    for (std::size_t at = before; at < tokens.size(); ++at) {
      const auto prefix = std::span<const TokenId>(tokens).first(at + 1);
      for (int head = 0; head < layers[l].kv_heads; ++head) {
        for (int d = 0; d < layers[l].k_dim; ++d) k.push_back(value_after(prefix, static_cast<int>(l), head, d, true));
        for (int d = 0; d < layers[l].v_dim; ++d) v.push_back(value_after(prefix, static_cast<int>(l), head, d, false));
      }
    }
    const auto rows = [&](const std::vector<double>& values, int dim) {
      return Rows{DType::f64, reinterpret_cast<const std::byte*>(values.data()),
                  static_cast<std::size_t>(layers[l].kv_heads * dim) * sizeof(double)};
    };
    (*step)->write(static_cast<int>(l), {0, layers[l].kv_heads}, rows(k, layers[l].k_dim), rows(v, layers[l].v_dim));
  }
  (*step)->commit();
  return {};
}

inline std::size_t codec_bytes(Codec codec) {
  return codec == Codec::f64 ? 8 : codec == Codec::f32 ? 4 : codec == Codec::bf16 || codec == Codec::f16 ? 2 : 1;
}

/// The stored bytes of one row, K, V and scales of all heads, found by what include/stet/cache.hpp says of cells.
inline std::string raw_row(const View& view, Pos pos) {
  const CellLayout& layout = *view.layout;
  const auto slot = static_cast<std::size_t>(pos % 16);
  std::string bytes;
  const auto take = [&](const std::byte* at, std::size_t size) {
    bytes.append(reinterpret_cast<const char*>(at), size);
  };
  for (int h = 0; h < layout.kv_heads; ++h) {
    const std::byte* head = view.cell(pos / 16) + static_cast<std::size_t>(h) * layout.head_stride;
    const auto width = [](Codec codec, int dim) {
      return static_cast<std::size_t>(codec == Codec::int4 ? (dim + 1) / 2 : dim);
    };
    const std::size_t k = codec_bytes(layout.k), v = codec_bytes(layout.v);
    for (std::size_t d = 0; d < width(layout.k, layout.k_dim); ++d) take(head + (d * 16 + slot) * k, k);
    take(head + layout.v_offset + slot * width(layout.v, layout.v_dim) * v, width(layout.v, layout.v_dim) * v);
    if (layout.k >= Codec::int8) take(head + layout.k_scales + slot * 4, 4);
    if (layout.v >= Codec::int8) take(head + layout.v_scales + slot * 4, 4);
  }
  return bytes;
}

/// Positions that the next query of a layer sees.
inline bool visible(const Span& span, Pos pos, Pos length) {
  return span.window == 0 || pos > length - span.window || pos < span.sinks;
}

/// Empty when both sequences hold the same bytes in all rows that their next query sees; else where they differ.
inline std::string difference(const Cache& a, Seq in_a, const Cache& b, Seq in_b) {
  const Pos length = a.length(in_a).value();
  if (b.length(in_b).value() != length) return "the lengths differ";
  for (std::size_t layer = 0; layer < a.spec().layers.size(); ++layer) {
    const View x = a.peek(in_a, static_cast<int>(layer)).value(), y = b.peek(in_b, static_cast<int>(layer)).value();
    for (Pos pos = 0; pos < length; ++pos) {
      const std::string where = "layer " + std::to_string(layer) + ", position " + std::to_string(pos);
      if (!visible(x.span, pos, length)) continue;
      if (!x.has(pos) || !y.has(pos)) return where + " is missing";
      if (raw_row(x, pos) != raw_row(y, pos)) return where + " differs";
    }
  }
  return "";
}

}  // namespace stet::kv_test
