// What eval reports is what two models' logits say by the textbook's formulas, and what cannot be evaluated is refused.
#include "lab/eval.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lab/paths.hpp"

namespace stet::lab {
namespace {

using testing::HasSubstr;

const std::string kModel = "random:char,layers=2,width=32,heads=4,ctx=80";
constexpr int kVocab = 65;

Ids some_ids(Pos n) {
  Ids ids;
  for (Pos i = 0; i < n; ++i) ids.push_back(static_cast<TokenId>((i * i * 7 + i * 3 + 1) % kVocab));
  return ids;
}

EvalInput input_of(Ids ids) {
  EvalInput input;
  input.name = "some ids";
  input.ids = std::move(ids);
  return input;
}

EvalOptions options_of(std::vector<DType> dtypes) {
  EvalOptions options;
  options.model = kModel;
  options.dtypes = std::move(dtypes);
  options.threads = 1;
  return options;
}

// Logits of every position, by another way through the model: token by token.
std::vector<float> logits_of(DType dtype, const Ids& ids) {
  const auto loaded = engine::load(kModel, dtype);
  EXPECT_TRUE(loaded);
  const auto out = run(*loaded->model, in_chunks(ids, 1), {}, {});
  EXPECT_TRUE(out);
  std::vector<float> logits(out->elements.size() / sizeof(float));
  std::memcpy(logits.data(), out->elements.data(), out->elements.size());
  return logits;
}

// Probabilities without any care for overflow, which logits this small do not need.
std::vector<long double> probabilities(const float* logits) {
  std::vector<long double> p(logits, logits + kVocab);
  long double sum = 0;
  for (auto& x : p) sum += x = std::exp(x);
  for (auto& x : p) x /= sum;
  return p;
}

TEST(Eval, IsWhatTheLogitsSay) {
  // Windows of 30, 30 and 11, of more and fewer rows than the kernels' tiles.
  const Ids ids = some_ids(71);
  for (const DType dtype : {DType::int4, DType::bf16}) {
    EvalOptions options = options_of({dtype});
    options.window = 30;
    const auto report = evaluate(options, input_of(ids), {});
    ASSERT_TRUE(report) << report.error().message;
    long double nll_f32 = 0, nll = 0, kl = 0;
    double distance = 0, largest = 0;
    int same = 0, n = 0;
    for (std::size_t at = 0; at < ids.size(); at += 30) {
      const Ids window(ids.begin() + static_cast<Pos>(at), ids.begin() + std::min<Pos>(71, static_cast<Pos>(at) + 30));
      const auto x = logits_of(DType::f32, window), y = logits_of(dtype, window);
      for (std::size_t t = 0; t + 1 < window.size(); ++t, ++n) {
        const float *a = x.data() + t * kVocab, *b = y.data() + t * kVocab;
        const auto p = probabilities(a), q = probabilities(b);
        const auto next = static_cast<std::size_t>(window[t + 1]);
        nll_f32 -= std::log(p[next]);
        nll -= std::log(q[next]);
        for (std::size_t i = 0; i < kVocab; ++i) {
          kl += p[i] * std::log(p[i] / q[i]);
          distance = std::max(distance, std::abs(double{a[i]} - double{b[i]}));
          largest = std::max(largest, std::abs(double{a[i]}));
        }
        same += std::max_element(a, a + kVocab) - a == std::max_element(b, b + kVocab) - b;
      }
    }
    EXPECT_EQ(report->tokens, 71);
    EXPECT_EQ(report->scored, n);
    EXPECT_EQ(report->scored, 71 - 3);
    ASSERT_EQ(report->rows.size(), 2U);
    const EvalRow &reference = report->rows[0], &row = report->rows[1];
    EXPECT_EQ(reference.dtype, DType::f32);
    EXPECT_NEAR(reference.nll, static_cast<double>(nll_f32 / n), 1e-12);
    EXPECT_EQ(reference.kl, 0);
    EXPECT_EQ(reference.top1, 1);
    EXPECT_EQ(row.dtype, dtype);
    EXPECT_NEAR(row.nll, static_cast<double>(nll / n), 1e-12);
    EXPECT_DOUBLE_EQ(row.perplexity, std::exp(row.nll));
    EXPECT_NEAR(row.kl, static_cast<double>(kl / n), 1e-13);
    EXPECT_GT(row.kl, 0);
    EXPECT_DOUBLE_EQ(row.top1, static_cast<double>(same) / n);
    EXPECT_EQ(row.max_logit_distance, distance);
    EXPECT_DOUBLE_EQ(row.max_logit_relative, distance / largest);
    EXPECT_LT(row.weight_bytes, reference.weight_bytes);
  }
}

TEST(Eval, ACacheLikeTheReferenceLosesNothing) {
  EvalOptions options = options_of({DType::f32});
  options.kv = {{Codec::f32, Codec::f32, 0, -1}, {Codec::f64, Codec::f64, 0, -1}, {Codec::int4, Codec::f32, 1, 1}};
  const auto report = evaluate(options, input_of(some_ids(100)), {});
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 4U);
  for (const std::size_t i : {0U, 1U, 2U}) {
    EXPECT_EQ(report->rows[i].kl, 0) << i;
    EXPECT_EQ(report->rows[i].top1, 1) << i;
    EXPECT_EQ(report->rows[i].max_logit_distance, 0) << i;
    EXPECT_EQ(report->rows[i].nll, report->rows[0].nll) << i;
    EXPECT_FALSE(report->rows[i].poor()) << i;
  }
  EXPECT_GT(report->rows[3].kl, 0);
  EXPECT_GT(report->rows[3].max_logit_distance, 0);
  EXPECT_EQ(report->rows[3].kv, "1:int4,f32");
  // 2 layers x 4 heads x 8 dims of keys and values; in layer 1 keys of 4 bytes and a scale.
  EXPECT_EQ(report->rows[0].cache_bytes_per_token, 2U * 2 * 32 * 4);
  EXPECT_EQ(report->rows[2].cache_bytes_per_token, 2U * 2 * 32 * 8);
  EXPECT_EQ(report->rows[3].cache_bytes_per_token, 3U * 32 * 4 + 4 * (4 + 4));
}

// The tests with the program hold a codec's numbers to logits; here, that each codec is the one asked for.
TEST(Eval, FinerCodecsAreCloser) {
  EvalOptions options = options_of({DType::f64});
  for (const Codec codec : {Codec::f32, Codec::f16, Codec::bf16, Codec::int4}) options.kv.push_back({codec, codec});
  const auto report = evaluate(options, input_of(some_ids(200)), {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->rows[0].kv, "f64");
  EXPECT_EQ(report->rows[0].dtype, DType::f64);
  for (std::size_t i = 1; i < report->rows.size(); ++i) {
    EXPECT_GT(report->rows[i].max_logit_distance, report->rows[i - 1].max_logit_distance) << report->rows[i].kv;
    EXPECT_GT(report->rows[i].kl, report->rows[i - 1].kl) << report->rows[i].kv;
  }
}

TEST(Eval, ThreadsAndCompanyChangeNoNumber) {
  const auto input = input_of(some_ids(100));
  const auto one = evaluate(options_of({DType::int8, DType::f16}), input, {});
  EvalOptions options = options_of({DType::f16, DType::f32, DType::int8});
  options.threads = 3;
  const auto three = evaluate(options, input, {});
  ASSERT_TRUE(one && three);
  ASSERT_EQ(one->rows.size(), 3U);
  ASSERT_EQ(three->rows.size(), 3U);
  EXPECT_EQ(one->rows[0].nll, three->rows[0].nll);
  EXPECT_EQ(one->rows[1].kl, three->rows[2].kl);
  EXPECT_EQ(one->rows[2].kl, three->rows[1].kl);
  const auto alone = evaluate(options_of({DType::f32}), input, {});
  ASSERT_TRUE(alone);
  ASSERT_EQ(alone->rows.size(), 1U);
  EXPECT_EQ(alone->rows[0].nll, one->rows[0].nll);
  EXPECT_EQ(alone->rows[0].kl, 0);
}

TEST(Eval, ReadsNoMoreTokensThanAsked) {
  EvalOptions options = options_of({DType::f32});
  options.tokens = 40;
  const auto some = evaluate(options, input_of(some_ids(100)), {});
  const auto all = evaluate(options_of({DType::f32}), input_of(some_ids(40)), {});
  ASSERT_TRUE(some && all);
  EXPECT_EQ(some->tokens, 40);
  EXPECT_EQ(some->rows[0].nll, all->rows[0].nll);
}

TEST(Eval, Refuses) {
  const auto refused = [](const EvalOptions& options, const EvalInput& input) {
    const auto report = evaluate(options, input, {});
    return report ? std::string() : report.error().message;
  };
  const EvalOptions plain = options_of({DType::f32});
  EXPECT_THAT(refused(plain, input_of({1})), HasSubstr("some ids has 1 token: at least 2"));
  EXPECT_THAT(refused(plain, input_of({1, 2, 65})),
              HasSubstr("token 3 has id 65, which is not in the vocabulary of 65"));
  EXPECT_THAT(refused(plain, input_of({1, -1})), HasSubstr("token 2 has id -1"));
  EvalInput text;
  text.name = "a.txt";
  text.text = "text";
  text.is_text = true;
  EXPECT_THAT(refused(plain, text), HasSubstr("has no tokenizer to read a.txt"));
  for (const Pos window : {1, 81}) {
    EvalOptions options = plain;
    options.window = window;
    EXPECT_THAT(refused(options, input_of(some_ids(100))), HasSubstr("must be 2 to the model's context of 80"));
  }
}

TEST(Eval, RefusesCodecsThatCannotBe) {
  EvalOptions options = options_of({DType::f32});
  options.kv = {{Codec::int8, Codec::int8, 1, 2}};
  const auto beyond = evaluate(options, input_of(some_ids(10)), {});
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message, HasSubstr("codecs for layers 1 to 2: the model has layers 0 to 1"));
  options.dtypes = {DType::f32, DType::int8};
  const auto two = evaluate(options, input_of(some_ids(10)), {});
  ASSERT_FALSE(two);
  EXPECT_EQ(two.error().code, Code::invalid_argument);
  EXPECT_THAT(two.error().message, HasSubstr("weights of one type, not 2"));
}

TEST(Eval, StopsWhenAsked) {
  int asked = 0;
  EvalCallbacks callbacks;
  bool scoring = false;
  callbacks.on_progress = [&](std::string_view what) { scoring = scoring || what.find("tokens") != what.npos; };
  callbacks.keep_going = [&] { return !scoring || ++asked < 3; };
  const auto report = evaluate(options_of({DType::f32}), input_of(some_ids(1000)), callbacks);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::interrupted);
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace stet::lab
