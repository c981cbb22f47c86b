// exp, tanh, erf and the activations against libm in the next wider type, which is an independent implementation:
// double for float, long double (64 or 113 bits of significand) for double.
#include "kernels/ref/math.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace {

namespace ref = stet::kernels::ref;

template <class T>
using Wide = std::conditional_t<std::same_as<T, float>, double, long double>;
template <class T>
using Bits = typename ref::MathConstants<T>::Bits;
template <class T>
using Function = T (*)(T);

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

template <class T>
bool same_bits(T a, T b) {
  return std::bit_cast<Bits<T>>(a) == std::bit_cast<Bits<T>>(b);
}

/// Distance of two representable numbers around `truth`.
template <class T>
Wide<T> ulp_at(Wide<T> truth) {
  using Limits = std::numeric_limits<T>;
  int exponent = 0;
  std::frexp(truth, &exponent);
  return std::ldexp(Wide<T>(1), std::max(exponent, Limits::min_exponent) - Limits::digits);
}

/// A function under test, its reference and the error allowed.
template <class T>
struct Subject {
  const char* name;
  Function<T> tested;
  Function<Wide<T>> truth;
  double ulps;
};

template <class T>
std::array<Subject<T>, 3> subjects() {
  using W = Wide<T>;
  return {{{"exp", [](T x) { return ref::exp(x); }, [](W x) { return std::exp(x); }, 1.5},
           {"tanh", [](T x) { return ref::tanh(x); }, [](W x) { return std::tanh(x); }, 2},
           {"erf", [](T x) { return ref::erf(x); }, [](W x) { return std::erf(x); }, 2}}};
}

/// The largest error seen, in units in the last place.
template <class T>
class Worst {
 public:
  explicit Worst(const Subject<T>& subject) : subject_(subject) {}
  ~Worst() {
    EXPECT_LE(ulps_, subject_.ulps) << subject_.name << " at " << at_;
    testing::Test::RecordProperty(std::string(subject_.name) + "_ulps", std::to_string(ulps_));
  }

  void add(T x) {
    const T got = subject_.tested(x);
    const Wide<T> truth = subject_.truth(x);
    // What rounds to infinity in T must be infinity; the wide type's ulp rule continues beyond the largest T.
    const T rounded = static_cast<T>(truth);
    double ulps = 0;
    if (std::isinf(rounded) || std::isinf(got)) {
      const bool nearly = std::fabs(truth) > std::numeric_limits<T>::max() * (1 - std::numeric_limits<T>::epsilon());
      ulps = got == rounded ? 0 : nearly ? 1 : 1e9;
    } else {
      ulps = static_cast<double>(std::fabs(got - truth) / ulp_at<T>(truth));
    }
    if (!(ulps <= ulps_)) {  // NaN is the worst of all
      ulps_ = std::isnan(ulps) ? 1e9 : ulps;
      at_ = x;
    }
  }

 private:
  Subject<T> subject_;
  double ulps_ = 0;
  T at_ = 0;
};

TEST(Math, FloatIsWithinItsBoundOverAllExponents) {
  for (const auto& subject : subjects<float>()) {
    Worst<float> worst(subject);
    for (std::uint64_t bits = 0; bits <= 0xffff'ffff; bits += 431) {  // ten million, every exponent 19,000 times
      const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      if (!std::isnan(x)) {
        worst.add(x);
      }
    }
  }
}

TEST(Math, DoubleIsWithinItsBoundOverAllExponents) {
  for (const auto& subject : subjects<double>()) {
    Worst<double> worst(subject);
    std::mt19937_64 random(1);
    for (int i = 0; i < 1'000'000; ++i) {
      const double x = std::bit_cast<double>(random());
      if (!std::isnan(x)) {
        worst.add(x);
      }
    }
  }
}

TEST(Math, DoubleIsWithinItsBoundWhereItsValuesVary) {
  const double widest[] = {746, 20, 6.5};  // of exp, tanh, erf
  const auto all = subjects<double>();
  for (std::size_t f = 0; f < all.size(); ++f) {
    Worst<double> worst(all[f]);
    std::mt19937_64 random(2);
    for (const double width : {widest[f], 1.25, 0.5}) {
      for (int i = 0; i < 700'000; ++i) {
        worst.add((static_cast<double>(random() >> 11) * 0x1p-52 - 1) * width);
      }
    }
  }
}

/// Around the borders between polynomials, clamps, and where the exponent of exp changes.
template <class T>
void check_borders() {
  using C = ref::MathConstants<T>;
  for (const auto& subject : subjects<T>()) {
    Worst<T> worst(subject);
    std::vector<T> borders{C::kTanhSplit, C::kTanhOne, C::kErfSplit, C::kErfOne, C::kExpLow, C::kExpHigh, T(0)};
    for (int n = -2200; n <= 2100; ++n) {
      borders.push_back(static_cast<T>((n + 0.5L) * 0.693147180559945309417L));
      borders.push_back(static_cast<T>((n + 0.5L) * 0.693147180559945309417L / 2));
    }
    for (const T border : borders) {
      for (const T sign : {T(1), T(-1)}) {
        T below = sign * border, above = sign * border;
        for (int step = 0; step < 200; ++step) {
          worst.add(below);
          worst.add(above);
          below = std::nextafter(below, -kInf<T>);
          above = std::nextafter(above, kInf<T>);
        }
      }
    }
  }
}

TEST(Math, FloatIsWithinItsBoundAtBorders) {
  check_borders<float>();
}
TEST(Math, DoubleIsWithinItsBoundAtBorders) {
  check_borders<double>();
}

template <class T>
void check_special_values() {
  using Limits = std::numeric_limits<T>;
  EXPECT_TRUE(same_bits(ref::exp(-kInf<T>), T(0)));
  EXPECT_TRUE(same_bits(ref::exp(Limits::lowest()), T(0)));
  EXPECT_EQ(ref::exp(kInf<T>), kInf<T>);
  EXPECT_EQ(ref::exp(Limits::max()), kInf<T>);
  EXPECT_EQ(ref::exp(T(0)), T(1));
  EXPECT_EQ(ref::exp(-T(0)), T(1));
  for (const Function<T> odd : {+[](T x) { return ref::tanh(x); }, +[](T x) { return ref::erf(x); }}) {
    EXPECT_EQ(odd(kInf<T>), T(1));
    EXPECT_EQ(odd(-kInf<T>), T(-1));
    EXPECT_EQ(odd(Limits::max()), T(1));
    EXPECT_TRUE(same_bits(odd(T(0)), T(0)));
    EXPECT_TRUE(same_bits(odd(-T(0)), -T(0)));
  }
  EXPECT_TRUE(same_bits(ref::tanh(Limits::denorm_min()), Limits::denorm_min()));
  for (const T nan : {kNan<T>, -kNan<T>, Limits::signaling_NaN()}) {
    EXPECT_TRUE(std::isnan(ref::exp(nan)));
    EXPECT_TRUE(std::isnan(ref::tanh(nan)));
    EXPECT_TRUE(std::isnan(ref::erf(nan)));
    EXPECT_TRUE(std::isnan(ref::gelu_tanh(nan)));
    EXPECT_TRUE(std::isnan(ref::gelu_erf(nan)));
    EXPECT_TRUE(std::isnan(ref::relu(nan)));
  }
}

TEST(Math, FloatSpecialValues) {
  check_special_values<float>();
}
TEST(Math, DoubleSpecialValues) {
  check_special_values<double>();
}

TEST(Math, ExpUnderflowsGradually) {
  EXPECT_EQ(ref::exp(-103.0f), 0x1p-149f);  // 1.2 x the smallest float
  EXPECT_EQ(ref::exp(-104.0f), 0.0f);       // 0.49 x
  EXPECT_EQ(ref::exp(-745.0), 0x1p-1074);   // 1.01 x the smallest double
  EXPECT_EQ(ref::exp(-745.2), 0.0);         // 0.83 x half of it
  EXPECT_GT(ref::exp(-90.0f), 0.0f);
  EXPECT_LT(ref::exp(-90.0f), std::numeric_limits<float>::min());
}

template <class T>
void check_odd_and_bounded() {
  std::mt19937_64 random(3);
  for (int i = 0; i < 1'000'000; ++i) {
    const T x = std::bit_cast<T>(static_cast<Bits<T>>(random()));
    if (std::isnan(x)) {
      continue;
    }
    for (const Function<T> odd : {+[](T y) { return ref::tanh(y); }, +[](T y) { return ref::erf(y); }}) {
      const T y = odd(x);
      ASSERT_TRUE(same_bits(odd(-x), -y)) << x;
      ASSERT_TRUE(y >= -1 && y <= 1) << x;
    }
  }
}

TEST(Math, FloatTanhAndErfAreOddAndBounded) {
  check_odd_and_bounded<float>();
}
TEST(Math, DoubleTanhAndErfAreOddAndBounded) {
  check_odd_and_bounded<double>();
}

/// With errors above half a unit, neighbouring arguments may swap where the function is flat. Not so arguments this far
/// apart: their true values differ by more than both errors, or both round to the same.
template <class T>
void check_rising(Function<T> function, T widest, T step) {
  T before = function(-widest);
  for (T x = -widest + step; x <= widest; x += step) {
    const T now = function(x);
    ASSERT_GE(now, before) << x;
    before = now;
  }
}

TEST(Math, ValuesRiseWithTheArgument) {
  check_rising<float>([](float x) { return ref::tanh(x); }, 7.0f, 0x1p-9f);
  check_rising<float>([](float x) { return ref::erf(x); }, 3.0f, 0x1p-9f);
  check_rising<float>([](float x) { return ref::exp(x); }, 90.0f, 0x1p-12f);
  check_rising<double>([](double x) { return ref::tanh(x); }, 15.0, 0x1p-12);
  check_rising<double>([](double x) { return ref::erf(x); }, 5.0, 0x1p-12);
  check_rising<double>([](double x) { return ref::exp(x); }, 700.0, 0x1p-10);
}

/// The formulas in the wide type, with an error bound relative to |x|, as 1 + tanh cancels for negative x.
template <class T>
void check_activations() {
  using W = Wide<T>;
  const W pi = std::acos(W(-1));
  const W bound = 4 * std::numeric_limits<T>::epsilon();
  std::mt19937_64 random(4);
  for (int i = 0; i < 300'000; ++i) {
    const T x = (static_cast<T>(random() >> 40) * T(0x1p-23) - 1) * T(12);
    const W w = x;
    const W by_tanh = w / 2 * (1 + std::tanh(std::sqrt(2 / pi) * (w + W(0.044715L) * w * w * w)));
    const W by_erf = w / 2 * (1 + std::erf(w / std::sqrt(W(2))));
    ASSERT_LE(std::fabs(ref::gelu_tanh(x) - by_tanh), bound * std::fabs(w)) << x;
    ASSERT_LE(std::fabs(ref::gelu_erf(x) - by_erf), bound * std::fabs(w)) << x;
    ASSERT_EQ(ref::relu(x), std::max(x, T(0)));
  }
  const T large = std::numeric_limits<T>::max();
  for (const Function<T> gelu : {+[](T x) { return ref::gelu_tanh(x); }, +[](T x) { return ref::gelu_erf(x); }}) {
    EXPECT_EQ(gelu(large), large);
    EXPECT_EQ(gelu(-large), T(0));
    EXPECT_EQ(gelu(kInf<T>), kInf<T>);
    EXPECT_EQ(gelu(T(0)), T(0));
  }
  EXPECT_EQ(ref::relu(-kInf<T>), T(0));
  EXPECT_EQ(ref::relu(kInf<T>), kInf<T>);
}

TEST(Math, FloatActivationsFollowTheirFormulas) {
  check_activations<float>();
}
TEST(Math, DoubleActivationsFollowTheirFormulas) {
  check_activations<double>();
}

template <class T, class F>
[[gnu::noinline]] void map_array(F function, const T* in, T* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = function(in[i]);
  }
}

/// A loop that the compiler may vectorise against single calls that it cannot.
template <class T, class F>
void check_loop(F function, const std::vector<T>& in) {
  std::vector<T> out(in.size());
  map_array(function, in.data(), out.data(), in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    volatile T x = in[i];
    ASSERT_TRUE(same_bits(out[i], function(x))) << in[i];
  }
}

template <class T>
std::vector<T> inputs() {
  std::vector<T> in{T(0), -T(0), kInf<T>, -kInf<T>};
  std::mt19937_64 random(5);
  for (int i = 0; i < 60'000; ++i) {
    const T any = std::bit_cast<T>(static_cast<Bits<T>>(random()));
    in.push_back(std::isnan(any) ? T(1) : any);
    in.push_back((static_cast<T>(random() >> 40) * T(0x1p-23) - 1) * (i % 2 ? T(100) : T(3)));
  }
  return in;
}

template <class T>
void check_loops() {
  const std::vector<T> in = inputs<T>();
  check_loop([](T x) { return ref::exp(x); }, in);
  check_loop([](T x) { return ref::tanh(x); }, in);
  check_loop([](T x) { return ref::erf(x); }, in);
  check_loop([](T x) { return ref::relu(x); }, in);
}

TEST(Math, FloatLoopsGiveTheBitsOfSingleCalls) {
  check_loops<float>();
}
TEST(Math, DoubleLoopsGiveTheBitsOfSingleCalls) {
  check_loops<double>();
}

/// FNV-1a over the bits of all functions at fixed inputs. NaN is left out: its bits are not promised.
template <class T>
std::uint64_t digest() {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  const auto add = [&hash](T y) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &y, sizeof(T));
    for (const unsigned char byte : bytes) {
      hash = (hash ^ byte) * 0x100'0000'01b3;
    }
  };
  for (const T x : inputs<T>()) {
    add(ref::exp(x));
    add(ref::tanh(x));
    add(ref::erf(x));
    if (std::isfinite(x)) {
      add(ref::gelu_tanh(x));
      add(ref::gelu_erf(x));
    }
  }
  return hash;
}

// These two pin the bits across compilers, optimisation levels and (little-endian) targets. They say nothing about
// correctness: change them, together with the numerics version, when a function changes on purpose.
TEST(Math, BitsAreTheSameOnEveryTarget) {
  EXPECT_EQ(digest<float>(), 3'292'262'242'121'740'811u);
  EXPECT_EQ(digest<double>(), 358'377'370'562'109u);
}

}  // namespace
