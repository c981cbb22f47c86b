// The seam between cache, model and kernel. The cache owns which rows exist and at which positions; the model owns what
// a query may see (Span); the attention kernel intersects the two. See docs/architecture.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet {

/// How one stored row (one token, one head) is encoded. A codec never looks beyond that row, so its bytes do not depend
/// on neighbours, chunking or layout. Widening is exact, narrowing rounds to nearest even. int8 and int4 keep one f32
/// scale a row (docs/numerics.md, rule 5); a row with a value that is not finite gets a scale that is NaN, so that it
/// cannot go unseen.
enum class Codec : std::uint8_t { f64, f32, bf16, f16, int8, int4 };
const char* name_of(Codec codec) noexcept;

/// Whether rows carry a scale.
constexpr bool has_scale(Codec codec) noexcept {
  return codec == Codec::int8 || codec == Codec::int4;
}

/// Tokens in a cell, the only stored unit. Cells are aligned to absolute position: cell c holds positions
/// [16 c, 16 c + 16). 16 is also the number of virtual lanes of a softmax sum (docs/numerics.md), so a cell is one
/// vector of every score computation whatever the layout.
inline constexpr Pos kCell = 16;

/// What a query may see: all positions up to its own (window 0), or only the last `window`, itself counted, and of the
/// others the first `sinks` of the sequence (attention sinks: Xiao et al. 2023). Without a window there are no sinks.
struct Span {
  Pos window = 0, sinks = 0;
  friend bool operator==(const Span&, const Span&) = default;
};

/// Where a row lies in a cell. For each KV head, `head_stride` bytes apart: K as [k_dim][16], then at `v_offset` V as
/// [16][v_dim]; that is the layout of a packed weight panel, so attention is two small matmuls. int4 puts two dims of a
/// token in a byte, code + 8, the low half first: of K dims 2i and 2i + 1, as [ceil(k_dim / 2)][16] bytes; of V dims i
/// and i + h, h = ceil(v_dim / 2), as [16][h] bytes. The 16 scales of int8 and int4 lie at `k_scales` and `v_scales`.
struct CellLayout {
  Codec k = Codec::f32, v = Codec::f32;
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  std::size_t bytes = 0, head_stride = 0, v_offset = 0;
  std::size_t k_scales = 0, v_scales = 0;  // from the start of the head; unused by the other codecs
};

/// The stored rows of one sequence and layer, as the kernel sees them: plain pointers and numbers. They are positions
/// [0, kept) and [first, first + count); kept is 0, or a multiple of 16 below `first`, and then so is `first`: what
/// lies between them was evicted. Cell c (positions 16 c to 16 c + 15) is number `cells[cell_index(c)]`, at `base +
/// number * layout->bytes`. Whatever else the cells hold is not part of the sequence and may be NaN.
struct View {
  const std::byte* base = nullptr;
  std::span<const std::uint32_t> cells;
  const CellLayout* layout = nullptr;
  Pos first = 0, count = 0;
  Span span;
  Pos kept = 0;

  /// Positions up to here are stored: the length of the sequence.
  Pos end() const noexcept { return first + count; }
  bool has(Pos pos) const noexcept { return pos >= 0 && (pos < kept || pos >= first) && pos < end(); }
  std::size_t cell_index(Pos cell) const noexcept {
    return static_cast<std::size_t>(cell < kept / kCell ? cell : cell - first / kCell + kept / kCell);
  }
  const std::byte* cell(Pos cell) const noexcept { return base + cells[cell_index(cell)] * layout->bytes; }
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

/// How cells are handed out. None changes a bit of any result.
///   contiguous  each sequence has room for max_len tokens from the start; with Retain::visible, layers with a window
///               are rings. A fork copies.
///   growing     each step copies all that its sequences hold to a place that is as long as they now are, as
///               concatenating tensors does: the honest bad example. Both places are reserved, nothing is evicted.
///   paged       pages from one pool for each group of layers alike; forks share them and copy on write.
enum class Layout : std::uint8_t { contiguous, growing, paged };
const char* name_of(Layout layout) noexcept;

/// Whether layers with a window keep what no later query sees. `all` only masks: the oracle for `visible`.
enum class Retain : std::uint8_t { visible, all };

struct CacheOptions {
  Layout layout = Layout::contiguous;
  Retain retain = Retain::visible;
  Pos page_tokens = 16;                  // paged: 16, 32, 64 or 128
  Pos max_len = 0;                       // tokens that one sequence can come to
  Pos max_step_tokens = 0;               // of one sequence in one step; 0: max_len. Windows hold this much more, and
                                         // begin refuses a longer one with Code::capacity
  int max_seqs = 1;                      // sequences open at a time
  Pos pool_tokens = 0;                   // paged: tokens, in whole pages, that a pool has; 0: for max_seqs x max_len
  std::optional<double> poison;          // what slots that hold no row are filled with, such as NaN, so that a read
                                         // beyond a sequence cannot go unseen; as far as the codec can express it
  std::optional<std::uint64_t> shuffle;  // paged: seeds the order in which free pages are handed out
};

/// What a cache costs, by arithmetic alone. `reserved` is everything its allocator will hand out, to the byte: cells
/// and tables, not the cache's copy of its spec.
struct CachePlan {
  std::size_t bytes_per_token = 0;     // stored bytes of one token over all layers, scales included, without rounding
  std::size_t bytes_per_sequence = 0;  // cells that one sequence of max_len holds at most, rounding included
  std::size_t reserved = 0;            // all cells and the cache's tables
};

/// What a cache holds now. `reserved` is counted by the allocator from what it really handed out.
struct CacheUsage {
  std::size_t reserved = 0;
  std::size_t used = 0;      // bytes of the rows that sequences hold; shared ones count for each, evicted ones not
  std::size_t live = 0;      // bytes of the cells (paged: pages) in use, shared ones once
  std::size_t shared = 0;    // of them, those in more than one sequence
  std::uint64_t copied = 0;  // bytes moved by growing, forking and copying on write since the cache was made
  Pos tokens = 0;            // the sum of the sequences' lengths
  int seqs = 0;              // open now
};

/// One stretch of storage in use: a page, or a sequence's own place (contiguous, growing; the cells of its sinks are
/// not told of). Of a page's positions some may have been evicted: pages go back whole.
struct PageInfo {
  int group = 0;                        // layers alike share one: the number of the first is `layer`
  int layer = 0, layers = 0;            // of the group
  std::uint32_t page = 0;               // its number in the pool; the sequence's index elsewhere
  Pos first = 0, filled = 0, room = 0;  // positions [first, first + filled) of room for `room`
  int owners = 0;
  std::uint32_t owner = 0;  // index of the first sequence that has it
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

  /// Makes the new rows part of their sequences, and evicts what no later query can see. Call once, after every layer
  /// and head was written.
  virtual void commit() noexcept = 0;
};

/// A store of keys and values for several sequences. One thread owns it (see Step::write for the exception).
/// Every call that returns an error has changed nothing. A handle that is not open is Code::not_found; every call but
/// the const ones while a Step is alive is Code::invalid_argument.
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

  /// Forgets the rows at `len` and after. 0 always can be. Code::invalid_argument when another len is negative, beyond
  /// the length, or below oldest_restorable: a row that the next query would see is then gone, and the error names it.
  virtual Result<void> truncate(Seq seq, Pos len) = 0;

  /// The shortest length above 0 that `truncate` and `fork` can still bring back. 0 where nothing was evicted.
  virtual Result<Pos> oldest_restorable(Seq seq) const = 0;

  /// A new sequence of the first `upto` tokens of another; errors as of truncate and open. Paged: shares all pages, and
  /// Code::exhausted cannot happen before one of both is written to. Other layouts copy.
  virtual Result<Seq> fork(Seq seq, Pos upto) = 0;

  /// A new sequence of `length` tokens whose rows are copied from `layers`, one view a layer in the codecs and shapes
  /// of this cache, perhaps of another cache, layout or page size. Each view must hold the rows up to `length` that its
  /// layer's next query sees (others are left out); Code::invalid_argument names layer and position otherwise.
  /// Code::capacity and Code::exhausted as of open and begin.
  virtual Result<Seq> restore(Pos length, std::span<const View> layers) = 0;

  /// Reserves room for all appends or changes nothing. Code::capacity, need and capacity named: it can never fit.
  /// Code::exhausted: it does not fit beside what the other sequences hold.
  virtual Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) = 0;

  /// The stored rows of one layer; valid until the next call that changes the cache.
  virtual Result<View> peek(Seq seq, int layer) const = 0;

  virtual CacheUsage usage() const noexcept = 0;

  /// All storage in use, group by group.
  virtual std::vector<PageInfo> pages() const = 0;
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
