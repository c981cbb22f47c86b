// The encoder against the definitions of the codecs, written out a second time.
#include "kv/encode.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kv/cell.hpp"
#include "stet/cache.hpp"

namespace stet::kv {
namespace {

constexpr Codec kCodecs[] = {Codec::f64, Codec::f32, Codec::bf16, Codec::f16, Codec::int8, Codec::int4};

struct OneHead {
  CellLayout layout;
  std::vector<double> storage;  // for its alignment

  OneHead(Codec codec, int dim) : layout(cell_layout({1, dim, dim, codec, codec, {}})), storage(layout.bytes / 8, -1) {}
  std::byte* bytes() { return reinterpret_cast<std::byte*>(storage.data()); }
  Block keys() { return key_block(layout, bytes(), 0); }
  Block values() { return value_block(layout, bytes(), 0); }
};

HeadRows rows_of(const std::vector<float>& x, int dim) {
  return {DType::f32, reinterpret_cast<const std::byte*>(x.data()), static_cast<std::size_t>(dim) * sizeof(float)};
}

std::vector<float> random_row(int dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(static_cast<std::size_t>(dim));
  for (float& v : x) v = normal(random);
  return x;
}

// What a codec makes of a row: by its definition, in long double where it rounds.
std::vector<double> expected(Codec codec, const std::vector<float>& x) {
  std::vector<double> to(x.begin(), x.end());
  float most = 0, largest = 0;
  for (const float v : x) {
    if (std::abs(v) > most) most = std::abs(v), largest = v;
  }
  const auto round_to = [](double v, int bits) {  // significant bits, ties to even
    int exponent = 0;
    const double fraction = std::frexp(v, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
  };
  for (double& v : to) {
    if (codec == Codec::bf16) v = round_to(v, 8);
    if (codec == Codec::f16) v = round_to(v, 11);
    if (codec == Codec::int8) {
      v = std::nearbyint(static_cast<float>(v) * (127 / most)) * static_cast<double>(most / 127);
    }
    if (codec == Codec::int4) {
      const float code = std::nearbyint(static_cast<float>(v) * (-8 / largest));
      v = std::min(code, 7.0F) * static_cast<double>(largest / -8);
    }
  }
  return to;
}

TEST(Encode, RowsReadBackAsTheirCodecDefines) {
  for (const Codec codec : kCodecs) {
    for (const int dim : {1, 2, 5, 16, 33, 64}) {
      OneHead head(codec, dim);
      const auto x = random_row(dim, static_cast<unsigned>(dim));
      const auto want = expected(codec, x);
      for (const int slot : {0, 7, 15}) {
        encode_keys(head.keys(), slot, rows_of(x, dim), 1);
        encode_values(head.values(), slot, rows_of(x, dim), 1);
        for (int d = 0; d < dim; ++d) {
          EXPECT_EQ(decode_key(head.keys(), slot, d), want[static_cast<std::size_t>(d)]) << name_of(codec) << " " << d;
          EXPECT_EQ(decode_value(head.values(), slot, d), want[static_cast<std::size_t>(d)])
              << name_of(codec) << " " << d;
        }
      }
    }
  }
}

TEST(Encode, ErrorsStayWithinHalfACode) {
  for (const auto& [codec, codes] : {std::pair{Codec::int8, 127.0}, std::pair{Codec::int4, 8.0}}) {
    OneHead head(codec, 64);
    const auto x = random_row(64, 9);
    float most = 0;
    for (const float v : x) most = std::max(most, std::abs(v));
    encode_keys(head.keys(), 3, rows_of(x, 64), 1);
    for (int d = 0; d < 64; ++d) {
      // int4 has one code less on the side that its largest value is not on.
      const double allowed = most / codes * (codec == Codec::int4 ? 1.0 : 0.5) * 1.0001;
      EXPECT_NEAR(decode_key(head.keys(), 3, d), x[static_cast<std::size_t>(d)], allowed) << name_of(codec);
    }
  }
}

TEST(Encode, ARowsBytesDependOnThatRowAlone) {
  for (const Codec codec : kCodecs) {
    const int dim = 24;
    std::vector<float> rows;
    for (unsigned t = 0; t < 16; ++t) {
      const auto row = random_row(dim, 100 + t);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    OneHead together(codec, dim), alone(codec, dim);
    encode_keys(together.keys(), 0, rows_of(rows, dim), 16);
    encode_values(together.values(), 0, rows_of(rows, dim), 16);
    for (int t = 15; t >= 0; --t) {
      const std::vector<float> row(rows.begin() + t * dim, rows.begin() + (t + 1) * dim);
      encode_keys(alone.keys(), t, rows_of(row, dim), 1);
      encode_values(alone.values(), t, rows_of(row, dim), 1);
    }
    EXPECT_EQ(std::memcmp(together.bytes(), alone.bytes(), together.layout.bytes), 0) << name_of(codec);
    // And writing one slot again leaves the others alone.
    encode_keys(alone.keys(), 4, rows_of(random_row(dim, 1), dim), 1);
    for (int t = 0; t < 16; ++t) {
      EXPECT_EQ(decode_key(alone.keys(), t, 5) == decode_key(together.keys(), t, 5), t != 4)
          << name_of(codec) << " " << t;
    }
  }
}

TEST(Encode, ARowThatIsNotFiniteCannotGoUnseen) {
  for (const Codec codec : {Codec::int8, Codec::int4}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      OneHead head(codec, 8);
      auto x = random_row(8, 2);
      x[3] = bad;
      encode_keys(head.keys(), 0, rows_of(x, 8), 1);
      encode_values(head.values(), 0, rows_of(x, 8), 1);
      EXPECT_TRUE(std::isnan(decode_key(head.keys(), 0, 0)));
      EXPECT_TRUE(std::isnan(decode_value(head.values(), 0, 7)));
    }
  }
}

TEST(Encode, TinyAndZeroRowsAreZeros) {
  for (const Codec codec : {Codec::int8, Codec::int4}) {
    OneHead head(codec, 4);
    for (const float x : {0.0F, -0.0F, 1e-40F, -0x1p-101F}) {
      encode_values(head.values(), 2, rows_of(std::vector<float>(4, x), 4), 1);
      for (int d = 0; d < 4; ++d) EXPECT_EQ(decode_value(head.values(), 2, d), 0) << x;
    }
  }
}

TEST(Encode, CopiesRowsByteForByteAndNoOthers) {
  for (const Codec codec : kCodecs) {
    OneHead from(codec, 10), to(codec, 10);
    for (int t = 0; t < 16; ++t) {
      encode_keys(from.keys(), t, rows_of(random_row(10, static_cast<unsigned>(t)), 10), 1);
      encode_values(from.values(), t, rows_of(random_row(10, static_cast<unsigned>(t)), 10), 1);
    }
    fill_keys(to.keys(), 0, 16, 2);
    fill_values(to.values(), 0, 16, 2);
    const double before = decode_key(to.keys(), 0, 0);
    EXPECT_NEAR(before, 2, 1e-6);
    copy_keys(from.keys(), to.keys(), 3, 6);
    copy_values(from.values(), to.values(), 3, 6);
    for (int t = 0; t < 16; ++t) {
      const bool copied = t >= 3 && t < 9;
      for (int d = 0; d < 10; ++d) {
        EXPECT_EQ(decode_key(to.keys(), t, d), copied ? decode_key(from.keys(), t, d) : before) << name_of(codec);
        EXPECT_EQ(decode_value(to.values(), t, d), copied ? decode_value(from.values(), t, d) : before)
            << name_of(codec);
      }
    }
  }
}

TEST(Cell, BytesARowAreThoseOfItsCodesAndScales) {
  EXPECT_EQ(row_bytes({12, 64, 64, Codec::f32, Codec::f32, {}}), 12U * 2 * 64 * 4);
  EXPECT_EQ(row_bytes({2, 64, 32, Codec::bf16, Codec::f64, {}}), 2U * (64 * 2 + 32 * 8));
  EXPECT_EQ(row_bytes({3, 7, 8, Codec::int4, Codec::int8, {}}), 3U * (4 + 4 + 8 + 4));
}

}  // namespace
}  // namespace stet::kv
