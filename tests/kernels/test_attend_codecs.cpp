// Attention through every codec, with windows and sinks, over cells that are shuffled and full of NaN where no row is:
// kernels/ref against plain formulas on decoded values, and every target against kernels/ref bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.hpp"
#include "kernels/kernels.hpp"
#include "kernels/run.hpp"
#include "kv/cell.hpp"
#include "kv/encode.hpp"

namespace stet::kernels {
namespace {

struct Shape {
  Pos n = 0;
  int tokens = 0, heads = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  Span span;
};

std::string name_of(const Shape& s) {
  return "n " + std::to_string(s.n) + " tokens " + std::to_string(s.tokens) + " dims " + std::to_string(s.k_dim) + " " +
         std::to_string(s.v_dim) + " window " + std::to_string(s.span.window) + " sinks " +
         std::to_string(s.span.sinks);
}

// A sequence of n rows, of which those that the last `tokens` queries do not see may be evicted.
class Sequence {
 public:
  Sequence(const Shape& shape, Codec k, Codec v, bool evict, unsigned seed)
      : shape_(shape), layout_(kv::cell_layout({shape.kv_heads, shape.k_dim, shape.v_dim, k, v, shape.span})) {
    const Pos oldest = shape.span.window > 0 ? std::max<Pos>(0, shape.n - shape.tokens + 1 - shape.span.window) : 0;
    kept_ = (shape.span.sinks + kCell - 1) / kCell * kCell;
    first_ = oldest / kCell * kCell;
    if (!evict || first_ <= kept_) kept_ = first_ = 0;
    const auto count = static_cast<std::size_t>(kept_ / kCell + (shape.n + kCell - 1) / kCell - first_ / kCell);
    cells_.resize(count * 2 + 3);
    for (std::size_t i = 0; i < cells_.size(); ++i) cells_[i] = static_cast<std::uint32_t>(i);
    std::shuffle(cells_.begin(), cells_.end(), std::mt19937(seed));
    storage_.assign(cells_.size() * layout_.bytes / sizeof(Line), Line{});
    fill(std::numeric_limits<double>::quiet_NaN());
    cells_.resize(count);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const std::size_t width =
        static_cast<std::size_t>(shape.kv_heads) * static_cast<std::size_t>(shape.k_dim + shape.v_dim);
    std::vector<float> row(width);
    for (Pos p = 0; p < shape.n; ++p) {
      for (float& x : row) x = normal(random);
      if (p % 29 == 7) std::fill(row.begin(), row.end(), 0.0F);
      if (view().has(p)) store(p, row);
    }
  }

  // Writes `value` to all slots, rows included.
  void fill(double value) { kv::fill_cells(layout_, bytes(), storage_.size() * sizeof(Line) / layout_.bytes, value); }

  View view() const {
    View view{
        reinterpret_cast<const std::byte*>(storage_.data()), cells_, &layout_, first_, shape_.n - first_, shape_.span};
    view.kept = kept_;
    return view;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::byte* bytes() { return reinterpret_cast<std::byte*>(storage_.data()); }

  void store(Pos p, const std::vector<float>& row) {
    std::byte* cell = const_cast<std::byte*>(view().cell(p / kCell));
    const int slot = static_cast<int>(p % kCell);
    const float* at = row.data();
    for (int h = 0; h < shape_.kv_heads; ++h) {
      kv::encode_keys(kv::key_block(layout_, cell, h), slot, {DType::f32, reinterpret_cast<const std::byte*>(at), 0},
                      1);
      at += shape_.k_dim;
      kv::encode_values(kv::value_block(layout_, cell, h), slot,
                        {DType::f32, reinterpret_cast<const std::byte*>(at), 0}, 1);
      at += shape_.v_dim;
    }
  }

  Shape shape_;
  CellLayout layout_;
  Pos first_ = 0, kept_ = 0;
  std::vector<Line> storage_;
  std::vector<std::uint32_t> cells_;
};

template <class T>
class AttendCodecs : public testing::Test {
 public:
  static std::vector<T> queries(const Shape& s) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::vector<T> q(static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.heads * s.k_dim));
    for (T& x : q) x = static_cast<T>(normal(random));
    return q;
  }

  static Attend<T> op(const Shape& s, const View& view, const std::vector<T>& q, std::vector<T>& out) {
    const auto width = static_cast<std::size_t>(s.heads * s.v_dim);
    out.assign(static_cast<std::size_t>(s.tokens) * width, T(5));
    return {
        view,       s.n - s.tokens, s.tokens, s.heads, T(0.3), q.data(), static_cast<std::size_t>(s.heads * s.k_dim),
        out.data(), width};
  }

  static std::vector<T> run(const Table<T>& table, const Shape& s, const View& view, const std::vector<T>& q) {
    std::vector<T> out;
    table.attend(op(s, view, q, out), {0, s.tokens}, {0, s.kv_heads});
    return out;
  }

  static const Table<T>& ref() { return targets().back().table<T>(); }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(AttendCodecs, Types);

constexpr Codec kCodecs[] = {Codec::f64, Codec::f32, Codec::bf16, Codec::f16, Codec::int8, Codec::int4};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TYPED_TEST(AttendCodecs, ReferenceIsSoftmaxOverWhatTheSpanShows) {
  using T = TypeParam;
  for (const Codec codec : kCodecs) {
    for (const Shape& s : {Shape{40, 7, 4, 2, 9, 7, {}},
                           {700, 5, 2, 1, 8, 10, {33, 4}},
                           {1200, 3, 1, 1, 6, 6, {600, 20}},
                           {60, 50, 2, 2, 5, 5, {12, 3}},
                           {2100, 2, 2, 2, 4, 4, {40, 530}}}) {
      const Sequence sequence(s, codec, codec, true, 3);
      const View view = sequence.view();
      const auto q = this->queries(s);
      const auto out = this->run(this->ref(), s, view, q);
      for (int r = 0; r < s.tokens; ++r) {
        const Pos position = s.n - s.tokens + r;
        for (int h = 0; h < s.heads; ++h) {
          const int kv_head = h / (s.heads / s.kv_heads);
          std::vector<double> key(static_cast<std::size_t>(s.k_dim)), value(static_cast<std::size_t>(s.v_dim));
          std::vector<long double> expected(value.size());
          long double sum = 0;
          for (Pos p = 0; p <= position; ++p) {
            if (s.span.window > 0 && p <= position - s.span.window && p >= s.span.sinks) continue;
            ASSERT_TRUE(read_key(view, kv_head, p, key) && read_value(view, kv_head, p, value)) << p;
            long double score = 0;
            for (int d = 0; d < s.k_dim; ++d)
              score += static_cast<long double>(q[static_cast<std::size_t>((r * s.heads + h) * s.k_dim + d)]) *
                       key[static_cast<std::size_t>(d)];
            const long double weight = std::exp(score * 0.3L);
            sum += weight;
            for (std::size_t d = 0; d < value.size(); ++d) expected[d] += weight * value[d];
          }
          for (std::size_t d = 0; d < value.size(); ++d) {
            ASSERT_NEAR(out[static_cast<std::size_t>((r * s.heads + h) * s.v_dim) + d],
                        static_cast<double>(expected[d] / sum), 100 * std::numeric_limits<T>::epsilon())
                << stet::name_of(codec) << ", " << name_of(s) << ", row " << r;
          }
        }
      }
    }
  }
}

TYPED_TEST(AttendCodecs, EveryTargetGivesTheReferencesBits) {
  using T = TypeParam;
  const Shape shapes[] = {{1, 1, 1, 1, 1, 1, {}},
                          {5, 5, 2, 1, 3, 7, {}},
                          {33, 1, 12, 12, 64, 64, {}},
                          {130, 130, 3, 3, 16, 16, {}},
                          {700, 3, 8, 2, 32, 48, {}},
                          {1300, 1, 4, 1, 128, 80, {}},
                          {600, 70, 2, 2, 8, 9, {17, 0}},
                          {700, 40, 2, 2, 24, 33, {65, 4}},
                          {1200, 30, 2, 1, 64, 64, {520, 1}},
                          {1300, 9, 6, 1, 20, 40, {700, 513}},
                          {90, 80, 2, 2, 8, 8, {5, 16}}};
  for (const Shape& s : shapes) {
    const auto q = this->queries(s);
    for (const Codec k : kCodecs) {
      for (const Codec v : kCodecs) {
        const Sequence sequence(s, k, v, true, 11);
        const auto expected = this->run(this->ref(), s, sequence.view(), q);
        ASSERT_TRUE(std::none_of(expected.begin(), expected.end(), [](T x) { return std::isnan(x); })) << name_of(s);
        for (const Target& target : targets()) {
          EXPECT_TRUE(same(this->run(target.table<T>(), s, sequence.view(), q), expected))
              << target.name << ", " << stet::name_of(k) << " and " << stet::name_of(v) << ", " << name_of(s);
        }
      }
    }
  }
}

TYPED_TEST(AttendCodecs, EvictedRowsAndThreadsChangeNoBit) {
  using T = TypeParam;
  for (const Shape& s : {Shape{2100, 2, 3, 1, 24, 24, {1030, 0}},
                         {2100, 2, 3, 1, 24, 24, {40, 600}},
                         {2100, 30, 4, 2, 16, 16, {100, 5}}}) {
    const auto q = this->queries(s);
    for (const Codec codec : {Codec::f32, Codec::int8, Codec::int4}) {
      const Sequence all(s, codec, codec, false, 5), some(s, codec, codec, true, 6);
      EXPECT_EQ(all.view().first, 0);
      EXPECT_GT(some.view().first, 0);
      const auto expected = this->run(this->ref(), s, all.view(), q);
      for (const int threads : {1, 2, 8}) {
        base::ThreadPool pool(threads);
        std::vector<T> out;
        const auto op = this->op(s, some.view(), q, out);
        run_attend<T>({&pool, &targets().front()}, s.kv_heads, [](int) {}, {&op, 1});
        EXPECT_TRUE(same(out, expected)) << threads << " threads, " << stet::name_of(codec) << ", " << name_of(s);
      }
    }
  }
}

TYPED_TEST(AttendCodecs, TheComparisonSeesAScaleAppliedInsideTheChain) {
  // What rule 5 forbids, on one query and key: the sum of q x (code x scale) rounds otherwise.
  using T = TypeParam;
  const Shape s{1, 1, 1, 1, 64, 1, {}};
  const Sequence sequence(s, Codec::int8, Codec::f32, false, 3);
  const auto q = this->queries(s);
  std::vector<double> key(64);
  ASSERT_TRUE(read_key(sequence.view(), 0, 0, key));
  const float scale = *reinterpret_cast<const float*>(sequence.view().cell(0) + sequence.view().layout->k_scales);
  T inside = 0, outside = 0;
  for (std::size_t d = 0; d < 64; ++d) {
    inside = std::fma(q[d], static_cast<T>(key[d]), inside);
    outside = std::fma(q[d], static_cast<T>(std::nearbyint(key[d] / static_cast<double>(scale))), outside);
  }
  EXPECT_NE(inside, outside * static_cast<T>(scale));
  EXPECT_NEAR(inside, outside * static_cast<T>(scale), 1e-4);
}

}  // namespace
}  // namespace stet::kernels
