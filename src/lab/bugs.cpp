#include "lab/bugs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stet::lab {
namespace {

using Codecs = std::pair<Codec, Codec>;

Play with(Play play, Wrap wrap) {
  play.wrap = std::move(wrap);
  return play;
}

Play in(Play play, Codec codec) {
  play.cache.codecs = Codecs{codec, codec};
  return play;
}

Codec wide(const Subject& s) {
  return s.model().dtype() == DType::f64 ? Codec::f64 : Codec::f32;
}

// A play beside itself with the bug in it.
std::vector<Asleep> asleep(std::string when, const Play& play, const Wrap& wrap) {
  return {{std::move(when), with(play, wrap), play}};
}

Play without_cache(Play play) {
  play.recompute = true;
  return play;
}

std::function<void(Given&)> wrap_all(Wrap wrap) {
  return [wrap = std::move(wrap)](Given& given) { given.wrap = wrap; };
}

Bug restart(bool rotary) {
  Bug bug;
  bug.name = rotary ? "phase-restart" : "positions-restart";
  bug.what = rotary ? "every call turns its queries and keys from phase 0 on, whatever the cache holds"
                    : "every call gives its tokens the positions 0, 1, 2, ..., whatever the cache holds";
  bug.injected = "a step whose slices() say first = 0 to the embedding, and the truth to the mask";
  bug.cure = "take positions from the cache alone: in Stet slices() is the one source of embedding, phase and mask";
  bug.needs = rotary ? Bug::Needs::rotary : Bug::Needs::learned;
  bug.right = [](const Subject& s) { return s.plain(); };
  bug.wrong = [](const Subject& s) { return with(s.plain(), positions_restart()); };
  bug.asleep = [](const Subject& s) {
    return asleep("without a cache: every call begins at 0 anyway", without_cache(s.plain()), positions_restart());
  };
  bug.pair = "cached and recomputed";
  bug.damage = wrap_all(positions_restart());
  return bug;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// The published signature: what is left is the first value alone.
Result<std::vector<Signature>> first_value_alone(const Subject& s, const BugReport&) {
  const Ids ids = s.first(s.prompt + 1);
  auto wrong = attention_of(s.model(), ids, square_mask());
  if (!wrong) return pass(wrong);
  auto right = attention_of(s.model(), ids, {});
  if (!right) return pass(right);
  return std::vector<Signature>{
      {"wrong_to_first_value", "|wrong - v0|, layer 0", distance(wrong->out, wrong->first_value)},
      {"right_to_first_value", "|right - v0|", distance(right->out, right->first_value)},
      {"right_to_wrong", "|right - wrong|", distance(right->out, wrong->out)},
      {"keys", "keys", static_cast<double>(ids.size())},
      {"keys_ignored", "of them ignored", static_cast<double>(ids.size() - 1)}};
}

Bug square() {
  Bug bug;
  bug.name = "square-mask";
  bug.what = "the 1 x (past + 1) mask of a decode step is the top left of a square one: only key 0 is seen";
  bug.injected = "a step whose slices() say first = 0 to the mask, and the truth to the embedding";
  bug.cure =
      "align the mask at the bottom right: row i of n sees past + i + 1 keys (Stet's kernel has no mask, only "
      "positions)";
  bug.right = [](const Subject& s) { return s.plain(); };
  bug.wrong = [](const Subject& s) { return with(s.plain(), square_mask()); };
  bug.asleep = [](const Subject& s) {
    return asleep("without a cache: the mask is square", without_cache(s.plain()), square_mask());
  };
  bug.pair = "cached and recomputed";
  bug.damage = wrap_all(square_mask());
  bug.signature = first_value_alone;
  return bug;
}

// The prompt and its beginnings; the shortest comes last, and is the one that is shown.
Play batch(const Subject& s) {
  Play play = s.plain();
  play.prompts = {s.first(s.prompt), s.first(std::max<Pos>(1, s.prompt / 2)), s.first(std::max<Pos>(1, s.prompt / 4))};
  return play;
}

Play filled(Play play, Padding side, TokenId pad) {
  play.padding = side;
  play.pad = pad;
  return play;
}

Bug padding(Padding side) {
  const bool right = side == Padding::right;
  Bug bug;
  bug.name = right ? "right-padding" : "left-padding";
  bug.what = right
                 ? "a batch is filled up on the right: the token after a short prompt is taken from a row of padding, "
                   "and all later ones come too late"
                 : "a batch is filled up on the left and nothing is masked: prompts begin too late and see padding";
  bug.injected = "a batch whose appends all have the longest prompt's length";
  bug.cure = "no padding: Stet's batches are ragged, every sequence appends its own tokens at its own positions";
  bug.right = batch;
  bug.wrong = [side](const Subject& s) { return filled(batch(s), side, s.pad); };
  bug.asleep = [side](const Subject& s) {
    Play one = s.plain(), equal = s.plain();
    equal.prompts = {s.first(s.prompt), s.first(s.prompt), s.first(s.prompt)};
    return std::vector<Asleep>{{"with one sequence", filled(one, side, s.pad), one},
                               {"in a batch of prompts of one length", filled(equal, side, s.pad), equal}};
  };
  bug.pair = "batch: ragged and alone";
  bug.damage = [side](Given& given) { given.batching = padded(side, given.ids.front()); };
  return bug;
}

Play windowed(Play play, Pos window) {
  play.cache.retain = Retain::visible;
  play.cache.spans = {{window, 0}};
  return play;
}

Play to_the_limit(const Subject& s) {
  Play play = s.plain();
  play.prompts = {s.first(s.limit)};
  constexpr int kPublished = 50;  // steps past the limit
  play.steps = std::min(s.steps, kPublished) + 1;
  play.limit = s.limit;
  return play;
}

double share(int part, int all) {
  return all > 0 ? 100.0 * part / all : 0;
}

// How often both mean the same next token, over one text and each over its own.
Result<std::vector<Signature>> agreement(const Subject&, const BugReport& report) {
  const auto first = static_cast<std::size_t>(report.first_logit.value_or(1) - 1);
  int same = 0;
  for (std::size_t i = first; i < report.ids_before.size(); ++i) same += report.ids_before[i] == report.ids_after[i];
  constexpr double kPublished = 10;
  return std::vector<Signature>{
      {"steps", "steps past the limit", static_cast<double>(report.asked)},
      {"agreement_percent", "same next token, % of them, over the right text", share(report.agreeing, report.asked)},
      {"apart_percent", "each over its own text", share(same, report.asked)},
      {"published_percent", "published (another character model)", kPublished}};
}

Bug slide() {
  Bug bug;
  bug.name = "naive-slide";
  bug.what =
      "past the limit the oldest row is dropped and the new token gets the last position; the rows that stay "
      "keep the positions that were added to them";
  bug.injected = "a window that drops rows, and a step whose slices() say at most limit - 1 to the embedding";
  bug.cure = "stop, or recompute the last window for every token (generate --past-limit recompute)";
  bug.needs = Bug::Needs::learned;
  bug.right = to_the_limit;
  bug.wrong = [](const Subject& s) {
    Play play = with(windowed(to_the_limit(s), s.limit), naive_slide(s.limit));
    play.limit = 0;
    return play;
  };
  bug.asleep = [](const Subject& s) {
    Play play = s.plain();
    play.steps = std::min(play.steps, static_cast<int>(s.limit - s.prompt));
    return std::vector<Asleep>{{"until the limit", with(windowed(play, s.limit), naive_slide(s.limit)), play}};
  };
  bug.pair = "window: contiguous";
  bug.damage = [](Given& given) { given.wrap = naive_slide(std::max<Pos>(1, given.n() / 3)); };  // the pair's window
  bug.signature = agreement;
  return bug;
}

// Drafts that are all taken back, as when a small model guesses and is wrong every time.
Play drafting(const Subject& s) {
  Play play = s.plain();
  constexpr Pos kDrafts = 3;
  for (Pos i = 0; i < kDrafts; ++i) play.drafts.push_back(s.text[static_cast<std::size_t>(5 * i % s.prompt)]);
  return play;
}

Bug tail() {
  Bug bug;
  bug.name = "stale-tail";
  bug.what = "after a truncation the rows behind the new end are still seen, until others are written over them";
  bug.injected =
      "a View from before the truncation: its count is too large, and so is the length that the mask is told";
  bug.cure = "take the view from the cache after the truncation; its count bounds what is read, not how full a page is";
  const auto unpoisoned = [](Play play) {
    play.poison = false;
    return play;
  };
  bug.right = [=](const Subject& s) { return unpoisoned(drafting(s)); };
  bug.wrong = [=](const Subject& s) { return with(unpoisoned(drafting(s)), stale_tail()); };
  bug.asleep = [=](const Subject& s) {
    return asleep("before the first truncation", unpoisoned(s.plain()), stale_tail());
  };
  bug.pair = "truncate and continue";
  // What a poisoned tail shows is NaN, which models with int8 and int4 weights refuse to work with.
  bug.damage = [](Given& given) {
    given.wrap = stale_tail();
    given.poison = false;
  };
  return bug;
}

// Codecs with a scale, where dequantised rows stand for the stored ones on both sides: only the order of rounding is
// then not the cache's own.
Result<std::vector<Signature>> coarser(const Subject& s, const BugReport&) {
  std::vector<Signature> all;
  for (const Codec codec : {Codec::int8, Codec::int4}) {
    const auto stored = play(s.model(), with(in(s.plain(), codec), fresh_rows(true)), s.go);
    if (!stored) return pass(stored);
    const auto fresh = play(s.model(), with(in(s.plain(), codec), fresh_rows()), s.go, &stored->ids);
    if (!fresh) return pass(fresh);
    const auto far = distances(s.model(), *stored, *fresh);
    int same = 0;
    for (std::size_t i = 0; i < far.size(); ++i) same += stored->ids.back()[i] == fresh->ids.back()[i];
    const std::string name = name_of(codec);
    all.push_back({name + "_distance", name + ": largest distance", *std::max_element(far.begin(), far.end())});
    all.push_back({name + "_agreement_percent", "same next token, %", share(same, static_cast<int>(far.size()))});
  }
  return all;
}

Bug fresh() {
  Bug bug;
  bug.name = "fresh-rows";
  bug.what =
      "in a reduced cache (bf16) a step's queries see its own rows as they were computed and not as they are "
      "stored: what a prompt gives depends on how it was cut";
  bug.injected = "a step whose views are those of a wide cache beside: past rows as stored, its own as written";
  bug.cure = "write, then attend: stored bytes are the truth, also for the rows of this very step";
  bug.right = [](const Subject& s) { return in(s.plain(), Codec::bf16); };
  bug.wrong = [](const Subject& s) { return with(in(s.plain(), Codec::bf16), fresh_rows()); };
  bug.asleep = [](const Subject& s) {
    return asleep("in a cache of the type of the arithmetic", in(s.plain(), wide(s)), fresh_rows());
  };
  bug.pair = "cache: bf16, pages of 128";
  bug.damage = wrap_all(fresh_rows());
  bug.signature = coarser;
  return bug;
}

Play seen_before(const Subject& s, Pos stored) {
  Play play = s.plain();
  play.stored = stored;
  return play;
}

Bug full_hit() {
  Bug bug;
  bug.name = "full-hit-off-by-one";
  bug.what =
      "of a prompt that is all there every row is reused, and its last token computed again behind itself: it is "
      "there twice, and all that follow come one position too late";
  bug.injected = "a cache whose fork at all but the last row has them all, and whose length() does not tell";
  bug.cure = "a full hit reuses all but the last row and computes that one again in its own place";
  bug.right = [](const Subject& s) { return seen_before(s, s.prompt); };
  bug.wrong = [](const Subject& s) { return with(seen_before(s, s.prompt), full_hit_off_by_one()); };
  bug.asleep = [](const Subject& s) {
    auto some = asleep("when the prompt is new", s.plain(), full_hit_off_by_one());
    auto more = asleep("when half of the prompt is there", seen_before(s, s.prompt / 2), full_hit_off_by_one());
    some.push_back(std::move(more.front()));
    return some;
  };
  bug.pair = "prefix hits: contiguous";
  bug.damage = wrap_all(full_hit_off_by_one());
  return bug;
}

Bug rollback() {
  Bug bug;
  bug.name = "quantised-rollback";
  bug.what =
      "in a cache of int8 a rollback takes back the codes and forgets the scales: rows written there next are "
      "read with those of the rejected ones";
  bug.injected = "a step that writes rows so that they get the scale of the row that was cut off there";
  bug.cure = "a row is codes and scale together: one encoder writes both, and nothing else does";
  bug.right = [](const Subject& s) { return in(drafting(s), Codec::int8); };
  bug.wrong = [](const Subject& s) { return with(in(drafting(s), Codec::int8), forgotten_scales()); };
  bug.asleep = [](const Subject& s) {
    auto some = asleep("before the first truncation", in(s.plain(), Codec::int8), forgotten_scales());
    auto more = asleep("where rows have no scale", in(drafting(s), wide(s)), forgotten_scales());
    some.push_back(std::move(more.front()));
    return some;
  };
  bug.pair = "truncate and continue: int8, contiguous";
  bug.damage = wrap_all(forgotten_scales());
  return bug;
}

}  // namespace

Play Subject::plain() const {
  Play play;
  play.prompts = {first(prompt)};
  play.steps = steps;
  return play;
}

std::vector<Bug> all_bugs() {
  return {restart(false), restart(true), square(),  padding(Padding::right), padding(Padding::left), slide(), tail(),
          fresh(),        full_hit(),    rollback()};
}

}  // namespace stet::lab
