// Every vector kernel of every instruction set that this CPU runs, against kernels/ref: the same bits, whatever the
// shape.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/run.hpp"
#include "kernels/simd_support.hpp"

namespace stet::kernels {
namespace {

// Of a matmul.
struct Shape {
  int rows, in, out;
};

TYPED_TEST_SUITE(Simd, Types);

TYPED_TEST(Simd, Matmul) {
  using T = TypeParam;
  for (const Shape& shape : std::vector<Shape>{
           {1, 1, 1},     {1, 64, 64},   {1, 100, 130},  {2, 33, 64},    {3, 257, 65}, {4, 5, 300},   {5, 64, 31},
           {6, 768, 128}, {7, 1025, 64}, {13, 2500, 70}, {16, 48, 144},  {31, 3, 97},  {8, 193, 130}, {9, 97, 64},
           {10, 96, 70},  {11, 200, 40}, {47, 130, 130}, {49, 1030, 70}, {50, 64, 65}, {64, 65, 66},  {600, 20, 129}}) {
    const auto rows = shape.rows, in = shape.in, out = shape.out;
    const auto x = mixed<T>(static_cast<std::size_t>(rows) * in, 1, rows % 2 == 1),
               w = mixed<T>(static_cast<std::size_t>(in) * out, 2), bias = mixed<T>(out, 3);
    auto packed = std::move(*Packed::allocate(sizeof(T) == 8 ? DType::f64 : DType::f32, in, out));
    for (int k = 0; k < in; ++k)
      packed.template set_inputs<T>(k, 1,
                                    {w.data() + static_cast<std::size_t>(k) * out, static_cast<std::size_t>(out)});
    for (const T* b : {bias.data(), static_cast<const T*>(nullptr)}) {
      const auto run = [&](const Table<T>& table) {
        std::vector<T> y(static_cast<std::size_t>(rows) * (out + 3), T(7));
        Matmul<T> op{x.data(), static_cast<std::size_t>(in), &packed, b, y.data(), static_cast<std::size_t>(out) + 3};
        op.onwards = b != nullptr;  // no hint changes a result
        table.matmul(op, {0, rows}, {0, packed.panels()});
        return y;
      };
      const auto expected = run(ref_table<T>());
      for (const auto* table : simd_tables<T>())
        EXPECT_TRUE(same(run(*table), expected)) << rows << " x " << in << " x " << out;
    }
  }
}

// Weights and activations of 8 bits at their extremes, too.
struct Reduced : testing::TestWithParam<DType> {};

TEST_P(Reduced, MatmulWithSmallerWeights) {
  const DType type = GetParam();
  for (const Shape& shape :
       std::vector<Shape>{{1, 1, 1},     {1, 64, 64},    {1, 100, 130}, {2, 33, 64},    {3, 257, 65},   {4, 5, 300},
                          {5, 64, 31},   {7, 1025, 64},  {12, 300, 64}, {13, 2500, 70}, {16, 48, 144},  {31, 3, 97},
                          {8, 193, 130}, {9, 257, 64},   {10, 256, 70}, {11, 520, 40},  {47, 130, 130}, {49, 3200, 70},
                          {50, 64, 65},  {51, 1030, 64}, {52, 40, 70},  {53, 6200, 66}, {600, 96, 129}}) {
    const auto rows = shape.rows, in = shape.in, out = shape.out;
    for (const bool extreme : {false, true}) {
      auto x = mixed<float>(static_cast<std::size_t>(rows) * in, 1),
           w = mixed<float>(static_cast<std::size_t>(in) * out, 2);
      const auto bias = mixed<float>(out, 3);
      if (extreme) {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? -1.0F : 1.0F;
        for (std::size_t i = 0; i < w.size(); ++i) w[i] = i % 5 == 0 ? 1.0F : -1.0F;
      }
      auto packed = std::move(*Packed::allocate(type, in, out));
      packed.set_inputs<float>(0, in, w);
      const auto run = [&](const Table<float>& table) {
        Matmul<float> op{x.data(), static_cast<std::size_t>(in), &packed, bias.data(),
                         nullptr,  static_cast<std::size_t>(out)};
        std::vector<float> y(static_cast<std::size_t>(rows) * out, 7.0F);
        std::vector<std::int8_t> q;
        std::vector<float> scales;
        std::vector<std::int32_t> sums;
        if (group_size(type) > 1) {
          const std::size_t groups = packed.groups();
          q.assign(rows * groups * group_size(type), 99);
          scales.assign(rows * groups, 99.0F);
          sums.assign(rows * groups, 99);
          op.quantized = {q.data(), scales.data(), sums.data(), packed.groups(), group_size(type)};
          EXPECT_TRUE(table.quantize({x.data(), static_cast<std::size_t>(in), in, op.quantized}, {0, rows}));
        }
        op.y = y.data();
        op.onwards = extreme;  // no hint changes a result
        table.matmul(op, {0, rows}, {0, packed.panels()});
        // What was quantised is part of the result.
        for (const std::int8_t v : q) y.push_back(v);
        for (const std::int32_t v : sums) y.push_back(static_cast<float>(v));
        y.insert(y.end(), scales.begin(), scales.end());
        return y;
      };
      const auto expected = run(ref_table<float>());
      for (const auto* table : simd_tables<float>()) {
        EXPECT_TRUE(same(run(*table), expected))
            << rows << " x " << in << " x " << out << (extreme ? " at extremes" : "");
      }
      // And near to what the numbers themselves give.
      for (int r = 0; r < rows; r += 5) {
        for (int n = 0; n < out; n += 7) {
          double exact = bias[n], size = std::abs(bias[n]);
          for (int k = 0; k < in; ++k) {
            exact += static_cast<double>(x[r * in + k]) * w[k * out + n];
            size += std::abs(static_cast<double>(x[r * in + k]) * w[k * out + n]);
          }
          const double relative = type == DType::int4   ? 0.3
                                  : type == DType::int8 ? 0.05
                                  : type == DType::bf16 ? 0.005
                                                        : 0.001;
          // Where one huge number sets the scale of its group, small ones are lost by right.
          if (extreme || bits_of(type) == 16) {
            EXPECT_NEAR(expected[r * out + n], exact, relative * size + 1e-6);
          }
        }
      }
    }
  }
}

TEST_P(Reduced, AnActivationThatIsNotFiniteIsToldWhereItCannotBeExpressed) {
  if (group_size(GetParam()) == 1) return;  // 16-bit weights work with whatever float has
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(100, 1.0F);
    x[77] = bad;
    std::vector<std::int8_t> q(256);
    std::vector<float> scales(8);
    std::vector<std::int32_t> sums(8);
    const int groups = (100 + group_size(GetParam()) - 1) / group_size(GetParam());
    const Quantize op{x.data(), 100, 100, {q.data(), scales.data(), sums.data(), groups, group_size(GetParam())}};
    EXPECT_FALSE(ref_table<float>().quantize(op, {0, 1}));
    for (const auto* table : simd_tables<float>()) EXPECT_FALSE(table->quantize(op, {0, 1}));
  }
}

TEST_P(Reduced, PackedKeepsWhatTheTypeCanHold) {
  const DType type = GetParam();
  const int in = 70, out = 67;
  const auto w = mixed<float>(static_cast<std::size_t>(in) * out, 3);
  auto packed = std::move(*Packed::allocate(type, in, out)), by_output = std::move(*Packed::allocate(type, in, out));
  packed.set_inputs<float>(0, 64, std::span(w).first(64 * out));
  packed.set_inputs<float>(64, in - 64, std::span(w).subspan(64 * out));
  for (int n = 0; n < out; ++n) {
    std::vector<float> column(in), back(in);
    for (int k = 0; k < in; ++k) column[k] = w[static_cast<std::size_t>(k) * out + n];
    by_output.set_outputs<float>(n, 1, column);
    packed.get_output<float>(n, back);
    for (int k = 0; k < in; ++k) {
      float most = 0;
      for (int j = k / group_size(type) * group_size(type);
           j < std::min(in, (k / group_size(type) + 1) * group_size(type)); ++j)
        most = std::max(most, std::abs(column[j]));
      const float step = type == DType::int4   ? 1.01F / 8
                         : type == DType::int8 ? 0.51F / 127
                         : type == DType::bf16 ? 0x1p-8F
                                               : 0x1p-11F;
      EXPECT_NEAR(back[k], column[k], step * most + 0x1p-25F);
    }
  }
  // Either layout packs to the same bytes.
  for (int p = 0; p < packed.panels() - 1; ++p)
    EXPECT_EQ(std::memcmp(packed.panel(p), by_output.panel(p), packed.panel_bytes()), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, Reduced, testing::Values(DType::f16, DType::bf16, DType::int8, DType::int4),
                         [](const auto& info) { return name_of(info.param); });

TYPED_TEST(Simd, MatmulWritesOnlyItsRowsAndPanels) {
  using T = TypeParam;
  const auto x = mixed<T>(20 * 50, 1), w = mixed<T>(50 * 200, 2);
  auto packed = std::move(*Packed::allocate(sizeof(T) == 8 ? DType::f64 : DType::f32, 50, 200));
  for (int k = 0; k < 50; ++k) packed.template set_inputs<T>(k, 1, {w.data() + k * 200, 200});
  for (const auto* table : simd_tables<T>()) {
    std::vector<T> y(20 * 200, T(-77)), expected = y;
    const Range rows{3, 17}, panels{1, packed.panels()};
    table->matmul({x.data(), 50, &packed, nullptr, y.data(), 200}, rows, panels);
    ref_table<T>().matmul({x.data(), 50, &packed, nullptr, expected.data(), 200}, rows, panels);
    EXPECT_TRUE(same(y, expected)) << "another target";
  }
}

TYPED_TEST(Simd, LayerNorm) {
  using T = TypeParam;
  for (const int width : {1, 2, 7, 15, 16, 17, 31, 32, 48, 100, 129, 768, 1000}) {
    const auto x = mixed<T>(5 * width, width), gain = mixed<T>(width, 7), bias = mixed<T>(width, 8);
    const auto run = [&](const Table<T>& table) {
      std::vector<T> y(5 * width);
      table.layer_norm({x.data(), static_cast<std::size_t>(width), gain.data(), bias.data(), T(1e-5), width, y.data(),
                        static_cast<std::size_t>(width)},
                       {0, 5});
      return y;
    };
    for (const auto* table : simd_tables<T>())
      EXPECT_TRUE(same(run(*table), run(ref_table<T>()))) << "#"
                                                          << " " << width;
  }
}

TYPED_TEST(Simd, ActivationsOverTheWholeRange) {
  using T = TypeParam;
  auto x = mixed<T>(100003, 4, true);
  std::mt19937_64 engine(5);
  for (std::size_t i = 0; i < 60000; ++i) {  // any bit pattern at all
    const std::uint64_t bits = engine();
    std::memcpy(&x[i], &bits, sizeof(T));
  }
  for (std::size_t i = 60000; i < 90000; ++i) x[i] = x[i] * T(20);
  for (const Activation activation :
       {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu, Activation::silu}) {
    for (const std::size_t n : {x.size(), std::size_t{1}, std::size_t{5}}) {
      std::vector<T> expected(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
      ref_table<T>().activate(activation, expected);
      for (const auto* table : simd_tables<T>()) {
        std::vector<T> y(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
        table->activate(activation, y);
        EXPECT_TRUE(same(y, expected)) << "#"
                                       << " " << static_cast<int>(activation);
      }
    }
  }
}

TYPED_TEST(Simd, Add) {
  using T = TypeParam;
  const auto x = mixed<T>(1003, 1, true);
  auto expected = mixed<T>(1003, 2, true);
  const auto start = expected;
  ref_table<T>().add(x, expected);
  for (const auto* table : simd_tables<T>()) {
    auto y = start;
    table->add(x, y);
    EXPECT_TRUE(same(y, expected)) << "another target";
  }
}

TYPED_TEST(Simd, RmsNorm) {
  using T = TypeParam;
  for (const int width : {1, 15, 16, 17, 64, 100, 768}) {
    const int rows = 5;
    const auto x = mixed<T>(static_cast<std::size_t>(rows) * width, 3), gain = mixed<T>(width, 4);
    const auto run = [&](const Table<T>& table) {
      std::vector<T> y(x.size(), T(7));
      table.layer_norm({x.data(), static_cast<std::size_t>(width), gain.data(), nullptr, T(1e-5), width, y.data(),
                        static_cast<std::size_t>(width)},
                       {0, rows});
      return y;
    };
    const auto expected = run(ref_table<T>());
    for (const auto* table : simd_tables<T>()) EXPECT_TRUE(same(run(*table), expected)) << width;
    // And what the formula says.
    for (int r = 0; r < rows; ++r) {
      long double squares = 0;
      for (int i = 0; i < width; ++i) squares += static_cast<long double>(x[r * width + i]) * x[r * width + i];
      for (int i = 0; i < width; ++i) {
        const auto y = static_cast<double>(x[r * width + i] / std::sqrt(squares / width + 1e-5L) * gain[i]);
        EXPECT_NEAR(expected[r * width + i], y,
                    std::abs(y) * 50 * std::numeric_limits<T>::epsilon() + std::numeric_limits<T>::min());
      }
    }
  }
}

TYPED_TEST(Simd, RotateAndMultiply) {
  using T = TypeParam;
  for (const int half : {1, 4, 7, 16, 33, 64}) {
    const int rows = 3, heads = 2;
    const auto cos = mixed<T>(static_cast<std::size_t>(rows) * half, 5),
               sin = mixed<T>(static_cast<std::size_t>(rows) * half, 6);
    const std::size_t stride = static_cast<std::size_t>(heads) * 2 * half + 5;
    const auto x = mixed<T>(rows * stride, 7), other = mixed<T>(rows * stride, 8);
    const auto run = [&](const Table<T>& table) {
      auto y = x;
      table.rotate({y.data(), stride, heads, 2 * half, cos.data(), sin.data()}, {0, rows});
      table.multiply(other, y);
      return y;
    };
    const auto expected = run(ref_table<T>());
    for (const auto* table : simd_tables<T>()) EXPECT_TRUE(same(run(*table), expected)) << half;
    EXPECT_EQ(expected[0], std::fma(-x[half], sin[0], x[0] * cos[0]) * other[0]);
    EXPECT_EQ(expected[half], std::fma(x[0], sin[0], x[half] * cos[0]) * other[half]);
    EXPECT_EQ(expected[stride - 1], x[stride - 1] * other[stride - 1]);  // not of a head
  }
}

TEST(QuantizedBytes, DoNotOverflowForTheLargestSizes) {
  // 2^31 - 1 inputs of one row are 2^25 groups of 64: a scale, a sum and 64 quants each.
  EXPECT_EQ(quantized_bytes(DType::int8, 1, 2147483647), (std::size_t{1} << 25) * (4 + 4 + 64));
  EXPECT_EQ(quantized_bytes(DType::f32, 1000, 1000), 0U);
}

}  // namespace
}  // namespace stet::kernels
