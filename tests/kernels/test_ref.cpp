// The reference kernels against the contract of docs/numerics.md, written out a second time one output at a time, and
// against plain formulas in long double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/thread_pool.hpp"
#include "kernels/kernels.hpp"
#include "kernels/run.hpp"

namespace stet::kernels {
namespace {

const Target kRef = targets().back();

template <class T>
constexpr DType kType = sizeof(T) == 8 ? DType::f64 : DType::f32;

template <class T>
const Table<T>& table() {
  return kRef.table<T>();
}

template <class T>
std::vector<T> random_values(std::size_t n, unsigned seed, double scale = 1) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(-scale, scale);
  std::vector<T> values(n);
  for (T& v : values) v = static_cast<T>(uniform(engine));
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
class Kernels : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Kernels, Types);

template <class T>
struct MatmulCase {
  int rows, in, out;
  std::vector<T> x, w, bias;  // w is [in, out]
  Packed packed;

  MatmulCase(int r, int k, int n, unsigned seed) : rows(r), in(k), out(n) {
    x = random_values<T>(static_cast<std::size_t>(r) * k, seed);
    w = random_values<T>(static_cast<std::size_t>(k) * n, seed + 1);
    bias = random_values<T>(n, seed + 2);
    packed = std::move(*Packed::allocate(kType<T>, k, n));
    for (int i = 0; i < k; ++i)
      packed.template set_inputs<T>(i, 1, {w.data() + static_cast<std::size_t>(i) * n, static_cast<std::size_t>(n)});
  }

  // Each output as one chain, as rule 1 says; `parts` > 1 breaks the rule.
  std::vector<T> chains(int parts = 1) const {
    std::vector<T> y(static_cast<std::size_t>(rows) * out);
    for (int r = 0; r < rows; ++r) {
      for (int n = 0; n < out; ++n) {
        T sum = 0;
        for (int p = 0; p < parts; ++p) {
          T acc = 0;
          for (int k = in * p / parts; k < in * (p + 1) / parts; ++k) {
            acc = std::fma(x[static_cast<std::size_t>(r) * in + k], w[static_cast<std::size_t>(k) * out + n], acc);
          }
          sum = p == 0 ? acc : sum + acc;
        }
        y[static_cast<std::size_t>(r) * out + n] = sum + bias[n];
      }
    }
    return y;
  }

  std::vector<T> run(int threads) const {
    std::vector<T> y(static_cast<std::size_t>(rows) * out);
    base::ThreadPool pool(threads);
    run_matmul({&pool, &kRef},
               Matmul<T>{x.data(), static_cast<std::size_t>(in), &packed, bias.data(), y.data(),
                         static_cast<std::size_t>(out)},
               rows, nullptr);
    return y;
  }
};

TYPED_TEST(Kernels, MatmulIsOneChainAnOutput) {
  for (const auto [rows, in, out] : {std::array{1, 1, 1}, {1, 7, 65}, {3, 64, 64}, {33, 50, 130}, {70, 129, 31}}) {
    const MatmulCase<TypeParam> c(rows, in, out, static_cast<unsigned>(rows + in + out));
    EXPECT_TRUE(same_bits(c.run(1), c.chains())) << rows << " x " << in << " x " << out;
    EXPECT_TRUE(same_bits(c.run(3), c.chains())) << rows << " x " << in << " x " << out << ", 3 threads";
  }
}

TYPED_TEST(Kernels, TheComparisonSeesAChainSplitInTwo) {
  const MatmulCase<TypeParam> c(3, 129, 65, 5);
  EXPECT_FALSE(same_bits(c.run(1), c.chains(2)));
}

TYPED_TEST(Kernels, MatmulWritesOnlyItsRowsAndPanels) {
  const MatmulCase<TypeParam> c(5, 20, 200, 9);
  const TypeParam mark = 1234;
  std::vector<TypeParam> y(5 * 200, mark);
  const Matmul<TypeParam> op{c.x.data(), 20, &c.packed, nullptr, y.data(), 200};
  table<TypeParam>().matmul(op, {1, 3}, {1, 2});
  const int first = panel_width(kType<TypeParam>), last = std::min(200, 2 * first);
  for (int r = 0; r < 5; ++r) {
    for (int n = 0; n < 200; ++n) {
      const bool inside = r >= 1 && r < 3 && n >= first && n < last;
      EXPECT_EQ(y[static_cast<std::size_t>(r) * 200 + n] != mark, inside) << r << ", " << n;
    }
  }
}

TYPED_TEST(Kernels, PackedGivesBackWhatWasSetFromEitherLayout) {
  using T = TypeParam;
  const int in = 13, out = 77;
  const auto w = random_values<T>(static_cast<std::size_t>(in) * out, 3);
  auto by_input = std::move(*Packed::allocate(kType<T>, in, out)),
       by_output = std::move(*Packed::allocate(kType<T>, in, out));
  for (int k = 0; k < in; ++k)
    by_input.template set_inputs<T>(k, 1,
                                    {w.data() + static_cast<std::size_t>(k) * out, static_cast<std::size_t>(out)});
  for (int n = 0; n < out; ++n) {
    std::vector<T> column(in);
    for (int k = 0; k < in; ++k) column[k] = w[static_cast<std::size_t>(k) * out + n];
    by_output.template set_outputs<T>(n, 1, column);
    std::vector<T> back(in);
    by_input.template get_output<T>(n, back);
    EXPECT_TRUE(same_bits(back, column));
  }
  for (int p = 0; p < by_input.panels(); ++p) {
    EXPECT_EQ(std::memcmp(by_input.panel(p), by_output.panel(p), by_input.panel_bytes()), 0);
  }
}

template <class T>
T tree(const std::array<T, 16>& lane) {
  std::array<T, 8> a;
  for (int i = 0; i < 8; ++i) a[i] = lane[i] + lane[i + 8];
  const T b[4] = {a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]};
  return (b[0] + b[2]) + (b[1] + b[3]);
}

TYPED_TEST(Kernels, LayerNormSumsInSixteenLanes) {
  using T = TypeParam;
  for (const int width : {1, 2, 15, 16, 17, 48, 129, 768}) {
    const auto x = random_values<T>(2 * width, width), gain = random_values<T>(width, 7),
               bias = random_values<T>(width, 8);
    std::vector<T> y(2 * width), expected(2 * width);
    table<T>().layer_norm({x.data(), static_cast<std::size_t>(width), gain.data(), bias.data(), T(1e-5), width,
                           y.data(), static_cast<std::size_t>(width)},
                          {0, 2});
    for (int r = 0; r < 2; ++r) {
      const T* row = x.data() + r * width;
      std::array<T, 16> lane{};
      for (int i = 0; i < width; ++i) lane[i % 16] += row[i];
      const T mean = tree(lane) / static_cast<T>(width);
      lane = {};
      for (int i = 0; i < width; ++i) lane[i % 16] = std::fma(row[i] - mean, row[i] - mean, lane[i % 16]);
      const T scale = T(1) / std::sqrt(tree(lane) / static_cast<T>(width) + T(1e-5));
      long double m = 0, var = 0;
      for (int i = 0; i < width; ++i) m += row[i];
      m /= width;
      for (int i = 0; i < width; ++i) var += (row[i] - m) * (row[i] - m);
      for (int i = 0; i < width; ++i) {
        expected[r * width + i] = std::fma((row[i] - mean) * scale, gain[i], bias[i]);
        const long double exact = (row[i] - m) / std::sqrt(var / width + 1e-5L) * gain[i] + bias[i];
        EXPECT_NEAR(y[r * width + i], static_cast<double>(exact), 200 * std::numeric_limits<T>::epsilon());
      }
    }
    EXPECT_TRUE(same_bits(y, expected)) << width;
  }
}

// Keys and values of one sequence in cells, with NaN wherever no row is.
template <class T>
struct Stored {
  CellLayout layout;
  int kv_heads, dim;
  Pos n;
  std::vector<T> k, v;  // [n][kv_heads][dim]
  std::vector<T> storage;
  std::vector<std::uint32_t> cells;

  Stored(Pos n_, int heads, int dim_, unsigned seed, bool shuffled = false,
         T unused = std::numeric_limits<T>::quiet_NaN())
      : kv_heads(heads),
        dim(dim_),
        n(n_),
        k(random_values<T>(n_ * heads * dim_, seed, 2)),
        v(random_values<T>(n_ * heads * dim_, seed + 1)) {
    layout.k = layout.v = sizeof(T) == 8 ? Codec::f64 : Codec::f32;
    layout.kv_heads = heads;
    layout.k_dim = layout.v_dim = dim;
    layout.v_offset = sizeof(T) * 16 * dim;
    layout.head_stride = 2 * layout.v_offset;
    layout.bytes = heads * layout.head_stride;
    const std::size_t count = (n + 15) / 16;
    cells.resize(count);
    for (std::size_t c = 0; c < count; ++c)
      cells[c] = static_cast<std::uint32_t>(shuffled ? (c * 7 + 3) % (count * 7 + 3) : c);
    storage.assign((count * 7 + 4) * layout.bytes / sizeof(T), unused);
    for (Pos p = 0; p < n; ++p) {
      for (int h = 0; h < heads; ++h) {
        T* head = storage.data() + (cells[p / 16] * layout.bytes + h * layout.head_stride) / sizeof(T);
        for (int d = 0; d < dim; ++d) {
          head[d * 16 + p % 16] = k[(p * heads + h) * dim + d];
          head[16 * dim + (p % 16) * dim + d] = v[(p * heads + h) * dim + d];
        }
      }
    }
  }
  View view(Span span = {}) const {
    return {reinterpret_cast<const std::byte*>(storage.data()), cells, &layout, 0, n, span};
  }
};

// Queries for the last `tokens` positions, run in chunks of `chunk` rows.
template <class T>
std::vector<T> attend(const Stored<T>& stored, const std::vector<T>& q, int heads, int tokens, int chunk, int threads,
                      Span span = {}) {
  const std::size_t stride = static_cast<std::size_t>(heads) * stored.dim;
  std::vector<T> out(tokens * stride);
  base::ThreadPool pool(threads);
  for (int r = 0; r < tokens; r += chunk) {
    const int rows = std::min(chunk, tokens - r);
    const Pos first = stored.n - tokens + r;
    View view = stored.view(span);
    view.count = first + rows;  // what a step of this chunk would see
    const Attend<T> op{view,  first, rows, heads, T(0.25), q.data() + r * stride, stride, out.data() + r * stride,
                       stride};
    run_attend<T>({&pool, &kRef}, stored.layout.kv_heads, [](int) {}, {&op, 1});
  }
  return out;
}

TYPED_TEST(Kernels, AttentionIsSoftmaxOverTheVisiblePositions) {
  using T = TypeParam;
  for (const Pos n : {Pos{1}, Pos{17}, Pos{513}, Pos{1100}}) {
    for (const Pos window : {Pos{0}, Pos{1}, Pos{40}}) {
      const int heads = 4, dim = 24, tokens = static_cast<int>(std::min<Pos>(n, 20));
      const Stored<T> stored(n, 2, dim, static_cast<unsigned>(n));
      const auto q = random_values<T>(static_cast<std::size_t>(tokens) * heads * dim, 11);
      const auto out = attend(stored, q, heads, tokens, tokens, 2, {window});
      for (int r = 0; r < tokens; ++r) {
        const Pos position = n - tokens + r, begin = window > 0 ? std::max<Pos>(0, position + 1 - window) : 0;
        for (int h = 0; h < heads; ++h) {
          std::vector<long double> p;
          long double most = -1e30L, sum = 0;
          for (Pos j = begin; j <= position; ++j) {
            long double s = 0;
            for (int d = 0; d < dim; ++d)
              s += static_cast<long double>(q[(r * heads + h) * dim + d]) * stored.k[(j * 2 + h / 2) * dim + d];
            p.push_back(s * 0.25L);
            most = std::max(most, p.back());
          }
          for (auto& x : p) sum += x = std::exp(x - most);
          for (int d = 0; d < dim; ++d) {
            long double expected = 0;
            for (Pos j = begin; j <= position; ++j)
              expected += p[j - begin] / sum * stored.v[(j * 2 + h / 2) * dim + d];
            ASSERT_NEAR(out[(r * heads + h) * dim + d], static_cast<double>(expected),
                        50 * std::numeric_limits<T>::epsilon())
                << n << " " << window;
          }
        }
      }
    }
  }
}

TYPED_TEST(Kernels, AttentionGivesTheSameBitsForEveryChunkThreadCountAndLayout) {
  using T = TypeParam;
  const Pos n = 1100;
  const int heads = 6, dim = 20, tokens = 600;
  const auto q = random_values<T>(static_cast<std::size_t>(tokens) * heads * dim, 21);
  for (const Pos window : {Pos{0}, Pos{3}, Pos{530}}) {
    const Stored<T> plain(n, 3, dim, 5);
    const auto expected = attend(plain, q, heads, tokens, tokens, 1, {window});
    for (const int chunk : {1, 3, 16, 64, 511})
      EXPECT_TRUE(same_bits(attend(plain, q, heads, tokens, chunk, 2, {window}), expected)) << chunk;
    EXPECT_TRUE(same_bits(attend(Stored<T>(n, 3, dim, 5, true), q, heads, tokens, 64, 2, {window}), expected))
        << "shuffled cells";
    EXPECT_TRUE(same_bits(attend(Stored<T>(n, 3, dim, 5, false, T(1e30)), q, heads, tokens, 64, 2, {window}), expected))
        << "huge unused slots";
  }
}

TYPED_TEST(Kernels, AttentionSkipsWhatItMustNotSee) {
  using T = TypeParam;
  // A value of infinity at a position that is not visible must not reach the result through a product with 0.
  Stored<T> stored(40, 1, 8, 3);
  const auto q = random_values<T>(8, 4);
  const auto before = attend(stored, q, 1, 1, 1, 1, {10});
  for (Pos p = 0; p < 30; ++p) {
    T* head = stored.storage.data() + stored.cells[p / 16] * stored.layout.bytes / sizeof(T);
    for (int d = 0; d < 8; ++d) head[16 * 8 + (p % 16) * 8 + d] = std::numeric_limits<T>::infinity();
  }
  EXPECT_TRUE(same_bits(attend(stored, q, 1, 1, 1, 1, {10}), before));
}

}  // namespace
}  // namespace stet::kernels
