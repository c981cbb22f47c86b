#include "kernels/run.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "base/buffer.hpp"

namespace stet::kernels {
namespace {

// Rows that reuse a panel, or its widened copy, while it is in the cache. More than the most are cut into equal parts,
// and fewer where a thread would have less than so many tasks.
constexpr int kMostRows = 528, kLeastRows = 24, kTasks = 4;
constexpr int kKernelRows = 6;           // a part is a multiple of the kernels' tile
constexpr int kQueryTile = 24;           // a multiple of the kernels' tile of 6
constexpr std::size_t kEnoughParts = 2;  // of attention for each thread: with fewer, contexts are cut
constexpr int kNormTile = 4;             // rows that the kernels take together
constexpr int kQuantizeTile = 4;
constexpr std::size_t kActivateTile = 4096;

Range tile(std::size_t index, int size, int end) {
  const int begin = static_cast<int>(index) * size;
  return {begin, std::min(begin + size, end)};
}

std::size_t tiles(int n, int size) {
  return (static_cast<std::size_t>(n) + static_cast<std::size_t>(size) - 1) / static_cast<std::size_t>(size);
}

// Adds the time until its end to one of a profile's sums; null: to none.
class Timed {
 public:
  explicit Timed(double* sum) : sum_(sum) {
    if (sum_ != nullptr) start_ = Clock::now();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    if (sum_ != nullptr) *sum_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  double* sum_;
  Clock::time_point start_;
};

}  // namespace

std::size_t quantized_bytes(DType weights, int rows, int in) noexcept {
  if (group_size(weights) == 1) return 0;
  const auto size = static_cast<std::size_t>(group_size(weights));
  const std::size_t n = static_cast<std::size_t>(rows) * ((static_cast<std::size_t>(in) + size - 1) / size);
  return base::align_up(n * sizeof(float)) + base::align_up(n * sizeof(std::int32_t)) +
         n * static_cast<std::size_t>(group_size(weights));
}

namespace {

QuantizedRows carve(DType weights, int rows, int in, std::byte* scratch) {
  QuantizedRows q;
  q.group = group_size(weights);
  q.groups = in / q.group + (in % q.group != 0 ? 1 : 0);
  const auto n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(q.groups);
  q.scales = reinterpret_cast<float*>(scratch);
  q.sums = reinterpret_cast<std::int32_t*>(scratch + base::align_up(n * sizeof(float)));
  q.q = reinterpret_cast<std::int8_t*>(scratch + base::align_up(n * sizeof(float)) +
                                       base::align_up(n * sizeof(std::int32_t)));
  return q;
}

}  // namespace

template <class T>
bool run_matmul(const Compute& on, const Matmul<T>& given, int rows, std::byte* scratch) {
  if (rows == 0) return true;  // a step whose logits nobody wants
  Profile* profile = on.profile;
  const Timed timed(profile == nullptr ? nullptr : given.head ? &profile->head_s : &profile->weights_s);
  Matmul<T> op = given;
  const auto& table = on.target->table<T>();
  if constexpr (sizeof(T) == sizeof(float)) {
    if (group_size(op.w->type()) > 1) {
      op.quantized = carve(op.w->type(), rows, op.w->in(), scratch);
      const Quantize quantize{op.x, op.x_stride, op.w->in(), op.quantized};
      std::atomic<bool> finite{true};
      on.pool->run(tiles(rows, kQuantizeTile), [&](std::size_t i) {
        if (!table.quantize(quantize, tile(i, kQuantizeTile, rows))) finite.store(false, std::memory_order_relaxed);
      });
      if (!finite.load()) return false;
    }
  }
  const int panels = op.w->panels(), threads = on.pool->threads();
  const std::size_t parts = std::max(tiles(rows, kMostRows), tiles(kTasks * threads, panels));
  const int even = static_cast<int>((static_cast<std::size_t>(rows) + parts - 1) / parts);
  const int part = std::max(kLeastRows, (even + kKernelRows - 1) / kKernelRows * kKernelRows);
  op.onwards = true;
  // Panels are the inner index: while they pass, the activations of a part stay in a cache that all threads share.
  on.pool->run(tiles(rows, part) * static_cast<std::size_t>(panels), [&](std::size_t i) {
    const std::size_t panel = i % static_cast<std::size_t>(panels);
    table.matmul(op, tile(i / static_cast<std::size_t>(panels), part, rows), tile(panel, 1, panels));
  });
  return true;
}

template <class T>
void run_add_layer_norm(const Compute& on, const T* addend, T* x, const LayerNorm<T>& given, int rows) {
  LayerNorm<T> op = given;
  op.x = x;
  const auto& table = on.target->table<T>();
  on.pool->run(tiles(rows, kNormTile), [&](std::size_t i) {
    const Range some = tile(i, kNormTile, rows);
    for (int r = some.begin; addend != nullptr && r < some.end; ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * op.x_stride;
      table.add({addend + at, static_cast<std::size_t>(op.width)}, {x + at, static_cast<std::size_t>(op.width)});
    }
    table.layer_norm(op, some);
  });
}

template <class T>
void run_activate(const Compute& on, Activation activation, std::span<T> x) {
  on.pool->run((x.size() + kActivateTile - 1) / kActivateTile, [&](std::size_t i) {
    on.target->table<T>().activate(activation,
                                   x.subspan(i * kActivateTile, std::min(kActivateTile, x.size() - i * kActivateTile)));
  });
}

template <class T>
void run_rotate(const Compute& on, const Rotate<T>& op, int rows) {
  on.pool->run(tiles(rows, kNormTile),
               [&](std::size_t i) { on.target->table<T>().rotate(op, tile(i, kNormTile, rows)); });
}

template <class T>
void run_gate(const Compute& on, Activation activation, T* rows_of_both, int inner, int rows) {
  const std::size_t pieces = tiles(inner, static_cast<int>(kActivateTile));
  const auto& table = on.target->table<T>();
  on.pool->run(pieces * static_cast<std::size_t>(rows), [&](std::size_t i) {
    const Range part = tile(i % pieces, static_cast<int>(kActivateTile), inner);
    T* gate = rows_of_both + i / pieces * 2 * static_cast<std::size_t>(inner) + part.begin;
    const auto n = static_cast<std::size_t>(part.end - part.begin);
    table.activate(activation, {gate, n});
    table.multiply({gate + inner, n}, {gate, n});
  });
}

namespace {

// Some rows of a slice and one KV head.
template <class T>
struct AttendPart {
  const Attend<T>* op;
  Range rows;
  int kv_head;
};

// Few heads behind long contexts: cuts also the contexts, into a few parts for each thread. False, and nothing is done,
// if all are of one block.
template <class T>
bool attend_by_blocks(const Compute& on, std::span<const AttendPart<T>> parts) {
  const auto& table = on.target->table<T>();
  std::vector<PartialBlocks<T>> results;
  std::size_t partials = 0, outs = 0;
  Pos all = 0;
  for (const auto& part : parts) {
    const Attend<T>& op = *part.op;
    PartialBlocks<T> blocks;
    blocks.first = op.first_block(part.rows.begin);
    blocks.count = op.end_block(part.rows.end - 1) - blocks.first;
    blocks.queries = static_cast<std::size_t>(part.rows.end - part.rows.begin) *
                     static_cast<std::size_t>(op.heads / op.view.layout->kv_heads);
    const std::size_t n = static_cast<std::size_t>(blocks.count) * blocks.queries;
    partials += n;
    outs += n * static_cast<std::size_t>(op.view.layout->v_dim);
    all += blocks.count;
    results.push_back(blocks);
  }
  if (all == static_cast<Pos>(parts.size())) return false;
  std::vector<Partial<T>> partial_values(partials);
  std::vector<T> out_values(outs);
  struct Cut {
    std::size_t part;
    Range blocks;
  };
  std::vector<Cut> cuts;
  const Pos step = std::max<Pos>(1, all / (kTasks * on.pool->threads()));
  partials = outs = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    PartialBlocks<T>& blocks = results[i];
    blocks.partials = partial_values.data() + partials;
    blocks.outs = out_values.data() + outs;
    const std::size_t n = static_cast<std::size_t>(blocks.count) * blocks.queries;
    partials += n;
    outs += n * static_cast<std::size_t>(parts[i].op->view.layout->v_dim);
    const Pos end = blocks.first + blocks.count;
    for (Pos b = blocks.first; b < end; b += step) {
      cuts.push_back({i, {static_cast<int>(b), static_cast<int>(std::min(end, b + step))}});
    }
  }
  on.pool->run(cuts.size(), [&](std::size_t i) {
    const auto& part = parts[cuts[i].part];
    table.attend_blocks(*part.op, part.rows, part.kv_head, cuts[i].blocks, results[cuts[i].part]);
  });
  on.pool->run(parts.size(),
               [&](std::size_t i) { table.merge_blocks(*parts[i].op, parts[i].rows, parts[i].kv_head, results[i]); });
  return true;
}

// What a part holds between its steps, from `at` on in `memory` (null: only counted); returns where the next begins.
template <class T>
std::size_t carve(const AttendPart<T>& part, PartialBlocks<T>& blocks, std::byte* memory, std::size_t at) {
  const Attend<T>& op = *part.op;
  blocks.first = op.first_block(part.rows.begin);
  blocks.count = op.end_block(part.rows.end - 1) - blocks.first;
  blocks.queries = static_cast<std::size_t>(part.rows.end - part.rows.begin) *
                   static_cast<std::size_t>(op.heads / op.view.layout->kv_heads);
  const std::size_t n = static_cast<std::size_t>(blocks.count) * blocks.queries;
  const auto take = [&](std::size_t bytes) {
    std::byte* begin = memory == nullptr ? nullptr : memory + at;
    at += base::align_up(bytes);
    return begin;
  };
  blocks.scores = reinterpret_cast<T*>(take(n * static_cast<std::size_t>(kSoftmaxBlock) * sizeof(T)));
  blocks.outs = reinterpret_cast<T*>(take(n * static_cast<std::size_t>(op.view.layout->v_dim) * sizeof(T)));
  blocks.partials = reinterpret_cast<Partial<T>*>(take(n * sizeof(Partial<T>)));
  return at;
}

// All scores of some parts, then all that follows from them. False, and nothing is done, without memory for it.
template <class T>
bool attend_at_once(const Compute& on, std::span<const AttendPart<T>> parts) {
  ScoreRows& scores = *on.scores;
  std::vector<PartialBlocks<T>> blocks(parts.size());
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) bytes = carve(parts[i], blocks[i], nullptr, bytes);
  if (scores.memory.size() < bytes) {
    scores.memory = {};
    auto memory = base::Buffer::allocate(bytes + bytes / 4);
    if (!memory) {
      scores.refused = true;
      return false;
    }
    scores.memory = std::move(*memory);
  }
  scores.used = std::max(scores.used, bytes);
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) at = carve(parts[i], blocks[i], scores.memory.data(), at);
  const auto& table = on.target->table<T>();
  const auto each = [&](auto kernel) {
    on.pool->run(parts.size(), [&](std::size_t i) {
      const PartialBlocks<T>& to = blocks[i];
      const Range range{static_cast<int>(to.first), static_cast<int>(to.first + to.count)};
      kernel(*parts[i].op, parts[i].rows, parts[i].kv_head, range, to);
    });
  };
  each(table.score_blocks);
  each([&](const Attend<T>& op, Range rows, int kv, Range range, const PartialBlocks<T>& to) {
    table.attend_blocks(op, rows, kv, range, to);
    table.merge_blocks(op, rows, kv, to);
  });
  return true;
}

// The parts of one slice, so many queries at a time.
template <class T>
bool attend_by_rows(const Compute& on, const Attend<T>& op, int kv_heads) {
  const int most = on.scores->rows == 0 ? op.tokens : on.scores->rows;
  std::vector<AttendPart<T>> parts;
  for (int begin = 0; begin < op.tokens; begin += most) {
    parts.clear();
    const int count = std::min(most, op.tokens - begin);
    for (std::size_t t = 0; t < tiles(count, kQueryTile); ++t) {
      const Range rows = tile(t, kQueryTile, count);
      for (int h = 0; h < kv_heads; ++h) parts.push_back({&op, {begin + rows.begin, begin + rows.end}, h});
    }
    if (!attend_at_once(on, std::span<const AttendPart<T>>(parts))) return false;
  }
  return true;
}

}  // namespace

template <class T>
void run_attend(const Compute& on, int kv_heads, const std::function<void(int)>& store,
                std::span<const Attend<T>> slices) {
  const Timed timed(on.profile == nullptr ? nullptr : &on.profile->attention_s);
  const auto& table = on.target->table<T>();
  const auto heads = static_cast<std::size_t>(kv_heads);
  if (on.scores != nullptr) {
    on.pool->run(heads, [&](std::size_t head) { store(static_cast<int>(head)); });
    for (const auto& op : slices) {
      if (!attend_by_rows(on, op, kv_heads)) {
        table.attend(op, {0, op.tokens}, {0, kv_heads});
      }
    }
    return;
  }
  int tokens = 0;
  for (const auto& op : slices) tokens += op.tokens;
  if (tokens <= kQueryTile && kv_heads >= 2 * on.pool->threads()) {
    // What a thread stored it reads at once, and the others need not wait for it.
    on.pool->run(heads, [&](std::size_t head) {
      const int h = static_cast<int>(head);
      store(h);
      for (const auto& op : slices) table.attend(op, {0, op.tokens}, {h, h + 1});
    });
    return;
  }
  on.pool->run(heads, [&](std::size_t head) { store(static_cast<int>(head)); });
  std::vector<AttendPart<T>> parts;
  for (const auto& op : slices) {
    for (std::size_t t = 0; t < tiles(op.tokens, kQueryTile); ++t) {
      for (int h = 0; h < kv_heads; ++h) parts.push_back({&op, tile(t, kQueryTile, op.tokens), h});
    }
  }
  if (parts.size() < kEnoughParts * static_cast<std::size_t>(on.pool->threads())) {
    if (attend_by_blocks(on, std::span<const AttendPart<T>>(parts))) return;
  }
  on.pool->run(parts.size(), [&](std::size_t i) {
    table.attend(*parts[i].op, parts[i].rows, {parts[i].kv_head, parts[i].kv_head + 1});
  });
}

template bool run_matmul(const Compute&, const Matmul<float>&, int, std::byte*);
template bool run_matmul(const Compute&, const Matmul<double>&, int, std::byte*);
template void run_add_layer_norm(const Compute&, const float*, float*, const LayerNorm<float>&, int);
template void run_add_layer_norm(const Compute&, const double*, double*, const LayerNorm<double>&, int);
template void run_rotate(const Compute&, const Rotate<float>&, int);
template void run_rotate(const Compute&, const Rotate<double>&, int);
template void run_gate(const Compute&, Activation, float*, int, int);
template void run_gate(const Compute&, Activation, double*, int, int);
template void run_activate(const Compute&, Activation, std::span<float>);
template void run_activate(const Compute&, Activation, std::span<double>);
template void run_attend(const Compute&, int, const std::function<void(int)>&, std::span<const Attend<float>>);
template void run_attend(const Compute&, int, const std::function<void(int)>&, std::span<const Attend<double>>);

}  // namespace stet::kernels
