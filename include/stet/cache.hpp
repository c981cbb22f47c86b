// The seam between cache, model and kernel. The cache owns which rows exist and at which positions; the model owns what
// a query may see (Span); the attention kernel intersects the two. See docs/architecture.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet {

/// How one stored row (one token, one head) is encoded. A codec never looks beyond that row, so its bytes do not depend
/// on neighbours, chunking or layout.
enum class Codec : std::uint8_t { f64, f32 };

/// Tokens in a cell, the only stored unit. Cells are aligned to absolute position: cell c holds positions
/// [16 c, 16 c + 16). 16 is also the number of virtual lanes of a softmax sum (docs/numerics.md), so a cell is one
/// vector of every score computation whatever the layout.
inline constexpr Pos kCell = 16;

/// What a query may see: all positions up to its own (window 0), or only the last `window`, itself counted.
struct Span {
  Pos window = 0;
  friend bool operator==(const Span&, const Span&) = default;
};

/// Where a row lies in a cell. For each KV head, `head_stride` bytes apart: K as [k_dim][16], then at `v_offset` V as
/// [16][v_dim]; that is the layout of a packed weight panel, so attention is two small matmuls.
struct CellLayout {
  Codec k = Codec::f32, v = Codec::f32;
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  std::size_t bytes = 0, head_stride = 0, v_offset = 0;
};

/// The stored rows of one sequence and layer, as the kernel sees them: plain pointers and numbers.
/// Position p lives in cell `cells[p / 16 - first / 16]`, at `base + cell * layout->bytes`, slot p % 16.
/// Only positions in [first, first + count) may be read: whatever else the cells hold is not part of the sequence and
/// may be NaN.
struct View {
  const std::byte* base = nullptr;
  std::span<const std::uint32_t> cells;
  const CellLayout* layout = nullptr;
  Pos first = 0, count = 0;
  Span span;
};

/// Activations of one step, row after row: row r of head h starts at data + r * row_stride + h * dim * size_of(type),
/// aligned to its type, which is f32 or f64.
struct Rows {
  DType type = DType::f32;
  const std::byte* data = nullptr;
  std::size_t row_stride = 0;  // bytes
};

/// KV heads [begin, end) of a layer.
struct HeadRange {
  int begin = 0, end = 0;
};

/// What a model asks of the cache for one layer.
struct LayerSpec {
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  Codec k = Codec::f32, v = Codec::f32;
  Span span;
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

struct CacheSpec {
  std::vector<LayerSpec> layers;
};

enum class Layout : std::uint8_t { contiguous };

struct CacheOptions {
  Layout layout = Layout::contiguous;
  Pos max_len = 0;      // tokens that one sequence can hold
  int max_seqs = 1;     // sequences open at a time
  bool poison = false;  // fill slots that hold no row with NaN, so that a read beyond a sequence cannot go unseen
};

/// What a cache costs, by arithmetic alone. `reserved` is everything its allocator will hand out, to the byte: cells
/// and tables, not the cache's copy of its spec.
struct CachePlan {
  std::size_t bytes_per_token = 0;     // stored bytes of one token over all layers, without rounding
  std::size_t bytes_per_sequence = 0;  // cells of one sequence of max_len, rounding included
  std::size_t reserved = 0;            // the cells of max_seqs sequences and the cache's tables
};

/// What a cache holds now. `reserved` is counted by the allocator from what it really handed out.
struct CacheUsage {
  std::size_t reserved = 0;
  std::size_t used = 0;  // bytes_per_token x tokens stored
  Pos tokens = 0;        // stored over all sequences
  int seqs = 0;          // open now
};

/// Handle of an open sequence. It carries a generation, so a handle that outlived its sequence is an error, never
/// another sequence's data.
struct Seq {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend bool operator==(const Seq&, const Seq&) = default;
};

/// One sequence's share of a step: `tokens` new rows at its end (at least 1). A sequence appears at most once in a
/// step.
struct Append {
  Seq seq;
  int tokens = 0;
};

/// Rows [row, row + tokens) of a step are positions [first, first + tokens) of `seq`. The only source of positions:
/// embeddings and rotary phases read it, nobody keeps a second counter.
struct Slice {
  Seq seq;
  Pos first = 0;
  int row = 0, tokens = 0;
};

/// A reservation for new rows, given by Cache::begin. Destroyed without commit it never happened. One is alive at a
/// time, from begin until its commit or destruction, and it must not outlive its cache.
class Step {
 public:
  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  virtual ~Step() = default;

  /// In the order of the appends; rows are numbered without gaps from 0. Still there after commit, until the next
  /// Cache::begin.
  virtual std::span<const Slice> slices() const noexcept = 0;

  /// Encodes and stores rows [0, rows of the step) of `heads` in `layer`. k and v hold the rows of the whole step, all
  /// KV heads. Different threads may write disjoint head ranges or layers at a time. The layer and the heads must
  /// exist, and the step must be alive.
  virtual void write(int layer, HeadRange heads, Rows k, Rows v) noexcept = 0;

  /// What the queries of a slice read: the stored rows and the ones written in this step. Valid until commit or
  /// destruction.
  virtual View view(int layer, int slice) const noexcept = 0;

  /// Makes the new rows part of their sequences. Call once, after every layer and head was written.
  virtual void commit() noexcept = 0;
};

/// A store of keys and values for several sequences. One thread owns it (see Step::write for the exception).
/// Every call that returns an error has changed nothing. A handle that is not open is Code::not_found; every call but
/// `length`, `peek` and `usage` while a Step is alive is Code::invalid_argument.
class Cache {
 public:
  Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  virtual ~Cache() = default;

  virtual const CacheSpec& spec() const noexcept = 0;
  virtual const CacheOptions& options() const noexcept = 0;

  /// An empty sequence. Code::capacity when max_seqs are open.
  virtual Result<Seq> open() = 0;
  virtual Result<void> close(Seq seq) = 0;

  /// Tokens stored.
  virtual Result<Pos> length(Seq seq) const = 0;

  /// Forgets the rows at `len` and after. Code::invalid_argument when len is negative or beyond the length.
  virtual Result<void> truncate(Seq seq, Pos len) = 0;

  /// Reserves room for all appends or changes nothing. Code::capacity names need and capacity.
  virtual Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) = 0;

  /// The stored rows of one layer; valid until the next call that changes the cache.
  virtual Result<View> peek(Seq seq, int layer) const = 0;

  virtual CacheUsage usage() const noexcept = 0;
};

/// The size of a cache by arithmetic only; nothing is allocated. Code::invalid_argument names the field that cannot be,
/// Code::capacity a size that overflows.
Result<CachePlan> plan_cache(const CacheSpec& spec, const CacheOptions& options);

/// A cache that has reserved exactly plan_cache(spec, options)->reserved bytes. Code::capacity when the system refuses.
Result<std::unique_ptr<Cache>> make_cache(const CacheSpec& spec, const CacheOptions& options);

/// Decodes one stored row of a head into `out` (k_dim or v_dim values). Code::invalid_argument when the position, the
/// head or the length of `out` does not fit the view.
Result<void> read_key(const View& view, int head, Pos pos, std::span<double> out);
Result<void> read_value(const View& view, int head, Pos pos, std::span<double> out);

}  // namespace stet
