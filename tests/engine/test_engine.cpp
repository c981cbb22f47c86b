// The step loop through the public API: the bundled model for text, random ones for ids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "stet/engine.hpp"

namespace stet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kBundled = STET_SOURCE_DIR "/models/shakespeare-char";

Engine load(const std::string& model, EngineOptions options = {}) {
  options.poison = true;
  if (options.threads == 0) options.threads = 1;
  auto engine = Engine::load(model, options);
  if (!engine) throw std::runtime_error(engine.error().message);
  return std::move(*engine);
}

Request request(std::vector<TokenId> prompt, int n) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_new = n;
  return r;
}

TEST(Engine, StreamsExactlyTheTextItReturns) {
  Engine engine = load(kBundled);
  Request r = request(*engine.tokenizer()->encode("ROMEO:"), 60);
  std::string streamed;
  std::vector<TokenId> ids;
  bool closed = false;
  const auto made = engine.generate({&r, 1}, [&](const TokenEvent& e) {
    EXPECT_FALSE(closed);
    streamed += e.piece;
    if (e.id)
      ids.push_back(*e.id);
    else
      closed = true;
    return true;
  });
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_TRUE(closed);
  EXPECT_EQ(made->front().text, streamed);
  EXPECT_EQ(made->front().ids, ids);
  EXPECT_EQ(ids.size(), 60U);
  EXPECT_EQ(*engine.tokenizer()->decode(ids), streamed);
  EXPECT_EQ(made->front().reason, StopReason::length);
}

TEST(Engine, StopsAtTheContextAndSaysSo) {
  Engine engine = load("random:char,ctx=12");
  const Request r = request({1, 2, 3}, 100);
  const auto made = engine.generate({&r, 1});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->front().reason, StopReason::context);
  EXPECT_EQ(made->front().ids.size(), 9U);
  const Request exact = request({1, 2, 3}, 9);
  EXPECT_EQ(engine.generate({&exact, 1})->front().reason, StopReason::length);
}

TEST(Engine, RefusesWhatCannotBeServedAndNamesIt) {
  Engine engine = load("random:char,ctx=12");
  const auto refusal = [&](const Request& r) {
    return engine.check(r) ? std::string() : engine.check(r).error().message;
  };
  EXPECT_THAT(refusal(request(std::vector<TokenId>(12, 1), 1)),
              HasSubstr("12 tokens, but must have fewer than the 12 of the model's context"));
  EXPECT_THAT(refusal(request({}, 1)), HasSubstr("empty"));
  EXPECT_THAT(refusal(request({1, 65}, 1)), HasSubstr("token id 65"));
  EXPECT_THAT(refusal(request({1}, -1)), HasSubstr("-1"));
  Request r = request({1}, 1);
  r.stop = {"x"};
  EXPECT_THAT(refusal(r), HasSubstr("tokenizer"));
  r = request({1}, 1);
  r.sampling.top_p = 0;
  EXPECT_THAT(refusal(r), HasSubstr("top_p"));
  const Request bad[] = {request({1}, 1), request({70}, 1)};
  const auto made = engine.generate(bad);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("request 1: token id 70"));
  EXPECT_EQ(engine.generate({bad, 1})->front().ids.size(), 1U);  // the engine is as good as before
}

TEST(Engine, RefusesOptionsThatCannotBe) {
  const auto refusal = [](auto change) {
    EngineOptions options;
    change(options);
    const auto engine = Engine::load("random:char", options);
    return engine ? std::string() : engine.error().message;
  };
  EXPECT_THAT(refusal([](EngineOptions& o) { o.threads = -1; }), HasSubstr("threads"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.threads = 100000; }), HasSubstr("threads"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.chunk = 0; }), HasSubstr("chunk"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.max_seqs = 0; }), HasSubstr("sequences"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.max_len = 129; }), HasSubstr("context is 128"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.max_seqs = 2147483647; }), testing::Not(testing::IsEmpty()));
}

TEST(Engine, ClosesEachRequestWithAnEventAlsoWithoutATokenizer) {
  Engine engine = load("random:char");
  const Request requests[] = {request({1}, 2), request({2}, 0)};
  std::vector<std::pair<std::size_t, bool>> events;
  ASSERT_TRUE(engine.generate(requests, [&](const TokenEvent& e) {
    events.emplace_back(e.index, e.id.has_value());
    return true;
  }));
  using Event = std::pair<std::size_t, bool>;
  EXPECT_THAT(events, ElementsAre(Event{0, true}, Event{0, true}, Event{0, false}, Event{1, false}));
}

TEST(Engine, PrefillOnlyMakesNoToken) {
  Engine engine = load("random:char");
  const Request r = request({1, 2, 3}, 0);
  const auto made = engine.generate({&r, 1});
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->front().ids.empty());
  EXPECT_EQ(engine.cache_usage().tokens, 3);
}

std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) {
    std::vector<TokenId> prompt;
    for (int j = 0; j <= i * i; ++j) prompt.push_back((i * 31 + j * 7) % 65);
    Request r = request(prompt, 5 + 3 * i);
    r.sampling.temperature = i % 2;
    r.sampling.seed = 5;
    r.sequence = static_cast<std::uint64_t>(i);
    requests.push_back(r);
  }
  return requests;
}

TEST(Engine, ABatchGivesEachRequestWhatItGetsAlone) {
  const auto requests = mixed_requests();
  Engine one = load("random:char");
  std::vector<std::vector<TokenId>> alone;
  for (const Request& r : requests) alone.push_back(one.generate({&r, 1})->front().ids);
  for (const auto [max_seqs, chunk, threads] : {std::array{7, 256, 1}, {3, 5, 2}, {2, 1, 1}}) {
    for (const CacheMode cache : {CacheMode::contiguous, CacheMode::none}) {
      EngineOptions options;
      options.max_seqs = max_seqs;
      options.chunk = chunk;
      options.threads = threads;
      options.cache = cache;
      Engine engine = load("random:char", options);
      const auto made = engine.generate(requests);
      ASSERT_TRUE(made) << made.error().message;
      for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*made)[i].ids, alone[i]) << i;
      EXPECT_EQ(engine.generate({&requests[3], 1})->front().ids, alone[3]) << "every sequence was given back";
    }
  }
}

TEST(Engine, StopStringEndsTheTextBeforeIt) {
  Engine engine = load(kBundled);
  Request r = request(*engine.tokenizer()->encode("ROMEO:"), 60);
  const std::string whole = engine.generate({&r, 1})->front().text;
  r.stop = {whole.substr(20, 4)};
  const auto made = engine.generate({&r, 1});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->front().reason, StopReason::stop_string);
  EXPECT_EQ(made->front().text, whole.substr(0, whole.find(r.stop[0])));
  r.stop = {"\x01 never there"};
  EXPECT_EQ(engine.generate({&r, 1})->front().text, whole);
}

TEST(Engine, InterruptionKeepsWhatWasMade) {
  Engine engine = load("random:char", [] {
    EngineOptions o;
    o.max_seqs = 2;
    return o;
  }());
  const Request requests[] = {request({1}, 50), request({2}, 50), request({3}, 50)};
  int events = 0;
  auto made = engine.generate(requests, [&](const TokenEvent&) { return ++events < 11; });
  ASSERT_TRUE(made);
  EXPECT_EQ((*made)[0].reason, StopReason::interrupted);
  EXPECT_EQ((*made)[0].ids.size() + (*made)[1].ids.size(), 11U);
  EXPECT_TRUE((*made)[2].ids.empty());
  int steps = 0;
  made = engine.generate(requests, {}, [&] { return ++steps <= 4; });
  ASSERT_TRUE(made);
  EXPECT_EQ((*made)[1].ids.size(), 4U);
  EXPECT_EQ((*made)[1].reason, StopReason::interrupted);
  EXPECT_EQ(engine.generate(requests)->at(2).ids.size(), 50U);
}

TEST(Engine, LogitsAreTheSameBitsInEveryModeAndChunk) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 50; ++i) ids.push_back(i * 11 % 65);
  Engine plain = load("random:char");
  const auto expected = *plain.logits(ids);
  for (const CacheMode cache : {CacheMode::contiguous, CacheMode::none}) {
    EngineOptions options;
    options.cache = cache;
    options.chunk = 7;
    options.threads = 2;
    Engine engine = load("random:char", options);
    const auto logits = *engine.logits(ids);
    ASSERT_EQ(logits.data.size(), expected.data.size());
    EXPECT_EQ(std::memcmp(logits.data.data(), expected.data.data(), expected.data.size()), 0);
  }
  EXPECT_FALSE(plain.logits({}));
  EXPECT_FALSE(plain.logits(std::vector<TokenId>(129, 1)));
  EXPECT_EQ(plain.logits(ids, [] { return false; }).error().code, Code::interrupted);
}

TEST(Engine, InspectForetellsWhatLoadHolds) {
  EngineOptions options;
  options.max_seqs = 3;
  options.max_len = 100;
  const auto foretold = *Engine::inspect("random:char", options);
  Engine engine = load("random:char", options);
  EXPECT_EQ(engine.info().cache_bytes, foretold.cache_bytes);
  EXPECT_EQ(engine.info().weight_bytes, foretold.weight_bytes);
  const Request r = request({1, 2}, 3);
  ASSERT_TRUE(engine.generate({&r, 1}));
  EXPECT_EQ(engine.cache_usage().reserved, foretold.cache_bytes);
  EXPECT_EQ(engine.cache_usage().used, foretold.cache_bytes_per_token * 4);  // 2 + 3 tokens, the last not fed back
}

}  // namespace
}  // namespace stet
