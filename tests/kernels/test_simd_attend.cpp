// Attention of every instruction set that this CPU runs, against kernels/ref: the same bits, whatever the shape, the
// cut and the threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/run.hpp"
#include "kernels/simd_support.hpp"

namespace stet::kernels {
namespace {

TYPED_TEST_SUITE(Simd, Types);

// Attention over a sequence in cells, shuffled, NaN wherever no row is.
template <class T>
struct Sequence {
  CellLayout layout;
  std::vector<T> storage;
  std::vector<std::uint32_t> cells;
  Pos n;

  Sequence(Pos n_, int kv_heads, int k_dim, int v_dim, unsigned seed) : n(n_) {
    layout.k = layout.v = sizeof(T) == 8 ? Codec::f64 : Codec::f32;
    layout.kv_heads = kv_heads;
    layout.k_dim = k_dim;
    layout.v_dim = v_dim;
    layout.v_offset = sizeof(T) * 16 * k_dim;
    layout.head_stride = layout.v_offset + sizeof(T) * 16 * v_dim;
    layout.bytes = kv_heads * layout.head_stride;
    const std::size_t count = static_cast<std::size_t>(n + 15) / 16;
    cells.resize(count);
    for (std::size_t c = 0; c < count; ++c) cells[c] = static_cast<std::uint32_t>((c * 7 + 3) % (count * 2 + 7));
    std::sort(cells.begin(), cells.end());
    cells.erase(std::unique(cells.begin(), cells.end()), cells.end());
    for (std::uint32_t next = 0; cells.size() < count; ++next) {
      if (std::find(cells.begin(), cells.end(), next) == cells.end()) cells.push_back(next);
    }
    std::shuffle(cells.begin(), cells.end(), std::mt19937(seed));
    storage.assign((count * 2 + 7) * layout.bytes / sizeof(T), std::numeric_limits<T>::quiet_NaN());
    const auto values = mixed<T>(static_cast<std::size_t>(n) * kv_heads * (k_dim + v_dim), seed);
    const T* value = values.data();
    for (Pos p = 0; p < n; ++p) {
      for (int h = 0; h < kv_heads; ++h) {
        T* head = storage.data() + (cells[p / 16] * layout.bytes + h * layout.head_stride) / sizeof(T);
        // Scores of some hundreds would leave one position only: scaled, so that many take part.
        for (int d = 0; d < k_dim; ++d) head[d * 16 + p % 16] = std::abs(*value) > 2 ? T(0.5) : *value, ++value;
        for (int d = 0; d < v_dim; ++d) head[16 * k_dim + (p % 16) * v_dim + d] = *value++;
      }
    }
  }
};

TYPED_TEST(Simd, Attend) {
  using T = TypeParam;
  struct Case {
    Pos n;
    int tokens, heads, kv_heads, k_dim, v_dim;
    Pos window;
  };
  for (const Case c : {Case{1, 1, 1, 1, 1, 1, 0},
                       {5, 5, 2, 1, 3, 7, 0},
                       {16, 16, 4, 4, 64, 64, 0},
                       {33, 1, 12, 12, 64, 64, 0},
                       {130, 130, 3, 3, 16, 16, 0},
                       {700, 3, 8, 2, 32, 48, 0},
                       {1300, 40, 4, 1, 20, 20, 0},
                       {1300, 1, 4, 1, 128, 80, 0},
                       {100, 60, 4, 2, 8, 8, 1},
                       {600, 600, 2, 2, 8, 9, 17},
                       {1200, 30, 2, 1, 64, 64, 520},
                       {1100, 600, 1, 1, 16, 16, 513}}) {
    const Sequence<T> s(c.n, c.kv_heads, c.k_dim, c.v_dim, static_cast<unsigned>(c.n + c.k_dim));
    auto q = mixed<T>(static_cast<std::size_t>(c.tokens) * c.heads * c.k_dim, 9);
    for (T& x : q) x = std::abs(x) > 2 ? T(-0.25) : x;
    const std::size_t q_stride = static_cast<std::size_t>(c.heads) * c.k_dim,
                      out_stride = static_cast<std::size_t>(c.heads) * c.v_dim;
    const View view{reinterpret_cast<const std::byte*>(s.storage.data()), s.cells, &s.layout, 0, c.n, {c.window}};
    std::vector<T> out;
    const auto op = [&] {
      out.assign(c.tokens * out_stride, T(5));
      return Attend<T>{view, c.n - c.tokens, c.tokens, c.heads, T(0.3), q.data(), q_stride, out.data(), out_stride};
    };
    const auto run = [&](const Table<T>& table) {
      table.attend(op(), {0, c.tokens}, {0, c.kv_heads});
      return out;
    };
    // Block by block, from the last on, then merged; `held`: all scores first.
    const auto run_blocks = [&](const Table<T>& table, bool held) {
      const Attend<T> attend = op();
      PartialBlocks<T> blocks;
      blocks.first = attend.begin(0) / kSoftmaxBlock;
      blocks.count = (attend.end(c.tokens - 1) - 1) / kSoftmaxBlock - blocks.first + 1;
      blocks.queries = static_cast<std::size_t>(c.tokens) * c.heads / c.kv_heads;
      const std::size_t n = static_cast<std::size_t>(blocks.count) * blocks.queries;
      constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
      for (int h = 0; h < c.kv_heads; ++h) {
        std::vector<T> outs(n * c.v_dim, kNan);
        std::vector<Partial<T>> partials(n, {kNan, kNan});
        blocks.outs = outs.data();
        blocks.partials = partials.data();
        auto scores = base::Buffer::allocate(held ? n * kSoftmaxBlock * sizeof(T) : 0);
        if (held) {
          blocks.scores = scores->template as<T>();
          std::fill_n(blocks.scores, n * kSoftmaxBlock, kNan);
          table.score_blocks(attend, {0, c.tokens}, h,
                             {static_cast<int>(blocks.first), static_cast<int>(blocks.first + blocks.count)}, blocks);
        }
        for (int b = static_cast<int>(blocks.first + blocks.count); b-- > blocks.first;) {
          table.attend_blocks(attend, {0, c.tokens}, h, {b, b + 1}, blocks);
        }
        table.merge_blocks(attend, {0, c.tokens}, h, blocks);
      }
      return out;
    };
    const auto expected = run(ref_table<T>());
    for (const T x : expected) ASSERT_FALSE(std::isnan(x)) << c.n;
    for (const bool held : {false, true}) {
      EXPECT_TRUE(same(run_blocks(ref_table<T>(), held), expected)) << "n " << c.n << " window " << c.window << held;
    }
    for (const auto* table : simd_tables<T>()) {
      EXPECT_TRUE(same(run(*table), expected)) << "n " << c.n << " tokens " << c.tokens << " window " << c.window;
      for (const bool held : {false, true}) {
        EXPECT_TRUE(same(run_blocks(*table, held), expected))
            << "n " << c.n << " tokens " << c.tokens << " window " << c.window << held;
      }
    }
  }
}

// Whole rows of scores, all at once or some at a time.
TYPED_TEST(Simd, AttentionThatHoldsRowsOfScoresIsThatByBlocks) {
  using T = TypeParam;
  const Pos n = 1100;
  const int heads = 4, kv_heads = 2, dim = 24, tokens = 70;
  const Sequence<T> s(n, kv_heads, dim, dim, 5);
  auto q = mixed<T>(static_cast<std::size_t>(tokens) * heads * dim, 9);
  for (T& x : q) x = std::abs(x) > 2 ? T(-0.25) : x;
  base::ThreadPool pool(2);
  const std::size_t stride = static_cast<std::size_t>(heads) * dim;
  for (const Pos window : {Pos{0}, Pos{530}}) {
    const View view{reinterpret_cast<const std::byte*>(s.storage.data()), s.cells, &s.layout, 0, n, {window}};
    const auto run = [&](ScoreRows* scores) {
      std::vector<T> out(static_cast<std::size_t>(tokens) * stride, T(5));
      const Attend<T> op{view, n - tokens, tokens, heads, T(0.3), q.data(), stride, out.data(), stride};
      run_attend<T>({&pool, &targets().front(), scores}, kv_heads, [](int) {}, {&op, 1});
      return out;
    };
    const auto expected = run(nullptr);
    std::vector<std::size_t> bytes;
    for (const int rows : {0, 128, 30, 1}) {
      ScoreRows scores;
      scores.rows = rows;
      EXPECT_TRUE(same(run(&scores), expected)) << rows << " rows, window " << window;
      EXPECT_FALSE(scores.refused);
      EXPECT_GE(scores.memory.size(), scores.used);
      bytes.push_back(scores.used);
    }
    EXPECT_EQ(bytes[0], bytes[1]);  // 128 rows are more than there are
    EXPECT_GE(bytes[0], static_cast<std::size_t>(tokens) * heads * (window > 0 ? 512 : 1024) * sizeof(T));
    EXPECT_LT(bytes[2], bytes[1]);
    EXPECT_LT(bytes[3], bytes[2]);
  }
}

// One KV head and many threads: the context is cut.
TYPED_TEST(Simd, AttentionOverThreadsIsThatOfOne) {
  using T = TypeParam;
  const Pos n = 2100;
  const int heads = 3, dim = 24, tokens = 2;
  const Sequence<T> s(n, 1, dim, dim, 5);
  auto q = mixed<T>(static_cast<std::size_t>(tokens) * heads * dim, 9);
  for (T& x : q) x = std::abs(x) > 2 ? T(-0.25) : x;
  for (const Pos window : {Pos{0}, Pos{1030}}) {
    std::vector<T> expected;
    for (const int threads : {1, 2, 3, 8}) {
      base::ThreadPool pool(threads);
      std::vector<T> out(static_cast<std::size_t>(tokens) * heads * dim, T(5));
      const View view{reinterpret_cast<const std::byte*>(s.storage.data()), s.cells, &s.layout, 0, n, {window}};
      const std::size_t stride = static_cast<std::size_t>(heads) * dim;
      const Attend<T> op{view, n - tokens, tokens, heads, T(0.3), q.data(), stride, out.data(), stride};
      std::atomic<int> stored{0};
      run_attend<T>({&pool, &targets().front()}, 1, [&](int head) { stored += head + 1; }, {&op, 1});
      EXPECT_EQ(stored, 1);
      if (threads == 1) ref_table<T>().attend(op, {0, tokens}, {0, 1}), expected = out;
      EXPECT_TRUE(same(out, expected)) << threads << " threads, window " << window;
    }
  }
}

}  // namespace
}  // namespace stet::kernels
