#include "kv/snapshot_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kv/cell.hpp"
#include "kv/plan.hpp"
#include "kv/sizes.hpp"

namespace stet::kv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the file is little endian, and cells are stored as they are");

// 0x89 keeps it from being taken for text, the line feed finds a copy that translated line ends.
constexpr std::array<std::uint8_t, 8> kMagic = {0x89, 'S', 'T', 'E', 'T', 'K', 'V', '\n'};
constexpr std::size_t kUnit = 8;  // tables: texts and tokens are padded to this

class Writer {
 public:
  template <class T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void bytes(std::span<const std::byte> more) { out_.insert(out_.end(), more.begin(), more.end()); }
  void digest(const base::Digest& digest) { bytes(std::as_bytes(std::span(digest.bytes))); }
  void pad(std::size_t to) { out_.resize(base::align_up(out_.size(), to)); }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// Reads front to back; the first thing that is not there makes it fail for good, and what it then gives is zeros.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const auto from = take(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  base::Digest digest() {
    base::Digest digest;
    const auto from = take(digest.bytes.size());
    if (!from.empty()) std::memcpy(digest.bytes.data(), from.data(), from.size());
    return digest;
  }
  std::string text(std::size_t size) {
    const auto from = take(size);
    std::string text(reinterpret_cast<const char*>(from.data()), from.size());
    skip_to(kUnit);
    return text;
  }
  std::vector<TokenId> tokens(std::size_t count) {
    const auto from = count <= left() / sizeof(TokenId) ? take(count * sizeof(TokenId)) : take(left() + 1);
    std::vector<TokenId> tokens(from.size() / sizeof(TokenId));
    if (!from.empty()) std::memcpy(tokens.data(), from.data(), from.size());
    skip_to(kUnit);
    return tokens;
  }
  void skip_to(std::size_t multiple) {
    const auto padding = take(base::align_up(at_, multiple) - at_);
    padded_ = padded_ && std::all_of(padding.begin(), padding.end(), [](std::byte b) { return b == std::byte{0}; });
  }

  std::size_t at() const noexcept { return at_; }
  std::size_t left() const noexcept { return bytes_.size() - at_; }
  bool failed() const noexcept { return failed_; }
  bool padded() const noexcept { return padded_; }

 private:
  std::span<const std::byte> take(std::size_t size) {
    failed_ = failed_ || size > left();
    if (failed_) return {};
    at_ += size;
    return bytes_.subspan(at_ - size, size);
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool failed_ = false, padded_ = true;
};

constexpr std::size_t kLayerBytes = 32, kBlockBytes = 40;
constexpr std::size_t kLeastSequence = 16;  // length, salt's size

// Parses tables; each step returns what is wrong, or nothing.
class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::uint64_t file_bytes)
      : in_(bytes), file_bytes_(file_bytes), next_(kHeaderBytes + bytes.size()) {}

  std::string all(SnapshotTables& tables) {
    if (auto wrong = identity(tables.identity); !wrong.empty()) return wrong;
    if (auto wrong = layers(tables.layers); !wrong.empty()) return wrong;
    if (auto wrong = sequences(tables); !wrong.empty()) return wrong;
    in_.skip_to(base::kAlign);
    if (in_.failed()) return kEnds;
    if (!in_.padded()) return "padding that is not zero";
    if (in_.left() != 0) return "tables go on after their end";
    if (next_ != file_bytes_) return fmt::format("the cells end at offset {}, the file at {}", next_, file_bytes_);
    return "";
  }

  std::size_t offset() const noexcept { return kHeaderBytes + in_.at(); }

 private:
  static constexpr const char* kEnds = "tables end in the middle";

  std::string identity(Identity& to) {
    to.numerics = in_.number<std::int32_t>();
    const auto size = in_.number<std::uint32_t>();
    to.weights = in_.digest();
    to.config = in_.text(size);
    if (in_.failed()) return kEnds;
    // Its lines stand in messages.
    const auto printable = [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); };
    if (!std::all_of(to.config.begin(), to.config.end(), printable)) return "a config that is not plain text";
    return "";
  }

  std::string layers(CacheSpec& to) {
    const auto count = in_.number<std::uint32_t>();
    in_.skip_to(kUnit);
    if (in_.failed() || count > in_.left() / kLayerBytes) return kEnds;
    if (count == 0) return "no layers";
    for (std::uint32_t i = 0; i < count; ++i) {
      LayerSpec layer;
      for (int* field : {&layer.kv_heads, &layer.k_dim, &layer.v_dim}) *field = in_.number<std::int32_t>();
      layer.k = static_cast<Codec>(in_.number<std::uint8_t>());
      layer.v = static_cast<Codec>(in_.number<std::uint8_t>());
      if (in_.number<std::uint16_t>() != 0) return fmt::format("layer {}: padding that is not zero", i);
      layer.span = {in_.number<std::int64_t>(), in_.number<std::int64_t>()};
      to.layers.push_back(layer);
    }
    // What a cache may have is known in one place.
    CacheOptions options;
    options.max_len = kCell;
    if (const auto plan = plan_cache(to, options); !plan) return plan.error().message;
    return "";
  }

  std::string sequences(SnapshotTables& tables) {
    const auto count = in_.number<std::uint32_t>();
    in_.skip_to(kUnit);
    if (in_.failed() || count > in_.left() / (kLeastSequence + kBlockBytes * tables.layers.layers.size())) return kEnds;
    for (std::uint32_t i = 0; i < count; ++i) {
      SavedSequence& sequence = tables.sequences.emplace_back();
      if (auto wrong = one(sequence, tables.layers); !wrong.empty()) return fmt::format("sequence {}: {}", i, wrong);
    }
    return "";
  }

  std::string one(SavedSequence& to, const CacheSpec& spec) {
    const auto length = in_.number<std::uint64_t>();
    const auto salt_size = in_.number<std::uint32_t>();
    in_.skip_to(kUnit);
    to.salt = in_.text(salt_size);
    to.tokens = in_.tokens(length);
    if (in_.failed()) return kEnds;
    if (std::any_of(to.tokens.begin(), to.tokens.end(), [](TokenId id) { return id < 0; }))
      return "a negative token id";
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      SavedBlock block;
      block.kept = in_.number<std::int64_t>();
      block.first = in_.number<std::int64_t>();
      block.offset = in_.number<std::uint64_t>();
      block.digest = in_.digest();
      if (in_.failed()) return kEnds;
      if (auto wrong = check(block, spec.layers[i], to.length()); !wrong.empty()) {
        return fmt::format("layer {}: {}", i, wrong);
      }
      to.blocks.push_back(block);
    }
    return "";
  }

  // Rows as a View may have them, and cells right after those of the block before.
  std::string check(const SavedBlock& block, const LayerSpec& layer, Pos length) {
    const bool rows = block.first >= 0 && block.first <= length && block.kept >= 0;
    const bool holes =
        block.kept == 0 || (block.kept % kCell == 0 && block.first % kCell == 0 && block.kept < block.first);
    if (!rows || !holes) {
      return fmt::format("rows [0, {}) and [{}, {}) cannot be", block.kept, block.first, length);
    }
    if (block.offset != next_) return fmt::format("cells at offset {}, not {}", block.offset, next_);
    const std::uint64_t bytes = block_bytes(layer, block, length);
    if (bytes > file_bytes_ - next_) return fmt::format("cells at offset {} go beyond the file's end", next_);
    next_ += bytes;
    return "";
  }

  Reader in_;
  std::uint64_t file_bytes_, next_;  // where the next block's cells begin; never beyond the file
};

}  // namespace

std::size_t block_cells(const SavedBlock& block, Pos length) noexcept {
  const std::size_t later =
      block.first == length ? 0 : cells_for(length) - static_cast<std::size_t>(block.first / kCell);
  return static_cast<std::size_t>(block.kept / kCell) + later;
}

std::uint64_t block_bytes(const LayerSpec& layer, const SavedBlock& block, Pos length) noexcept {
  return multiply(block_cells(block, length), cell_layout(layer).bytes);
}

std::array<std::byte, kHeaderBytes> header_bytes(const SnapshotHeader& header) {
  Writer out;
  out.bytes(std::as_bytes(std::span(kMagic)));
  out.number(kFormatVersion);
  out.number(std::uint32_t{0});
  out.number(header.file_bytes);
  out.number(header.table_bytes);
  out.digest(header.tables);
  std::vector<std::byte> bytes = out.take();
  const base::Digest own = base::digest_of(bytes);
  std::array<std::byte, kHeaderBytes> all{};
  std::copy(bytes.begin(), bytes.end(), all.begin());
  std::memcpy(all.data() + bytes.size(), own.bytes.data(), own.bytes.size());
  return all;
}

Result<SnapshotHeader> parse_header(std::span<const std::byte> bytes, std::string_view where) {
  const auto magic = std::as_bytes(std::span(kMagic));
  if (!std::equal(magic.begin(), magic.begin() + static_cast<std::ptrdiff_t>(std::min(magic.size(), bytes.size())),
                  bytes.begin())) {
    return fail(Code::corrupt, fmt::format("{}: is not a saved cache: it does not begin with its mark", where));
  }
  if (bytes.size() < kHeaderBytes) {
    return fail(Code::corrupt, fmt::format("{}: ends at offset {}, inside its header", where, bytes.size()));
  }
  Reader in(bytes.subspan(magic.size()));
  const auto version = in.number<std::uint32_t>();
  in.number<std::uint32_t>();
  SnapshotHeader header;
  header.file_bytes = in.number<std::uint64_t>();
  header.table_bytes = in.number<std::uint64_t>();
  header.tables = in.digest();
  const std::size_t end = magic.size() + in.at();
  // Before the version: every version has this header, so a flipped bit in the version is damage and not the future.
  if (!(in.digest() == base::digest_of(bytes.first(end)))) {
    return fail(Code::corrupt,
                fmt::format("{}: header, offset 0 to {}: the checksum does not match", where, kHeaderBytes - 1));
  }
  if (version != kFormatVersion) {
    return fail(Code::unsupported,
                fmt::format("{}: format version {}; this build reads version {}", where, version, kFormatVersion));
  }
  return header;
}

std::vector<std::byte> identity_bytes(const Identity& identity, const CacheSpec& layers) {
  Writer out;
  out.number(static_cast<std::int32_t>(identity.numerics));
  out.number(static_cast<std::uint32_t>(identity.config.size()));
  out.digest(identity.weights);
  out.bytes(std::as_bytes(std::span(identity.config)));
  out.pad(kUnit);
  out.number(static_cast<std::uint32_t>(layers.layers.size()));
  out.pad(kUnit);
  for (const LayerSpec& layer : layers.layers) {
    for (const int field : {layer.kv_heads, layer.k_dim, layer.v_dim}) out.number(static_cast<std::int32_t>(field));
    out.number(static_cast<std::uint8_t>(layer.k));
    out.number(static_cast<std::uint8_t>(layer.v));
    out.number(std::uint16_t{0});
    out.number(static_cast<std::int64_t>(layer.span.window));
    out.number(static_cast<std::int64_t>(layer.span.sinks));
  }
  return out.take();
}

std::vector<std::byte> table_bytes(const SnapshotTables& tables) {
  Writer out;
  out.bytes(identity_bytes(tables.identity, tables.layers));
  out.number(static_cast<std::uint32_t>(tables.sequences.size()));
  out.pad(kUnit);
  for (const SavedSequence& sequence : tables.sequences) {
    out.number(static_cast<std::uint64_t>(sequence.tokens.size()));
    out.number(static_cast<std::uint32_t>(sequence.salt.size()));
    out.pad(kUnit);
    out.bytes(std::as_bytes(std::span(sequence.salt)));
    out.pad(kUnit);
    out.bytes(std::as_bytes(std::span(sequence.tokens)));
    out.pad(kUnit);
    for (const SavedBlock& block : sequence.blocks) {
      out.number(static_cast<std::int64_t>(block.kept));
      out.number(static_cast<std::int64_t>(block.first));
      out.number(block.offset);
      out.digest(block.digest);
    }
  }
  out.pad(base::kAlign);
  return out.take();
}

Result<SnapshotTables> parse_tables(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                    std::string_view where) {
  SnapshotTables tables;
  Parser parser(bytes, file_bytes);
  if (file_bytes < kHeaderBytes || bytes.size() > file_bytes - kHeaderBytes) {
    return fail(Code::corrupt, fmt::format("{}: ends at offset {}, inside its tables", where, file_bytes));
  }
  if (const std::string wrong = parser.all(tables); !wrong.empty()) {
    return fail(Code::corrupt, fmt::format("{}: tables, near offset {}: {}", where, parser.offset(), wrong));
  }
  return tables;
}

}  // namespace stet::kv
