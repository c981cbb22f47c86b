#include "lab/break.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "lab/bugs.hpp"

namespace stet::lab {
namespace {

// From a scene that all of the plays are spoken from, if there is a tokenizer: Shakespeare's Sonnets 18 and 116.
constexpr std::string_view kText =
    "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\nRough winds do shake the "
    "darling buds of May,\nAnd summer's lease hath all too short a date:\nSometime too hot the eye of heaven shines,\n"
    "And often is his gold complexion dimm'd;\nAnd every fair from fair sometime declines,\nBy chance or nature's "
    "changing course untrimm'd;\nBut thy eternal summer shall not fade\nNor lose possession of that fair thou owest;\n"
    "Nor shall Death brag thou wander'st in his shade,\nWhen in eternal lines to time thou growest.\n";

constexpr std::size_t kLargeBytes = std::size_t{64} << 20;

// Rows that a play may hold beyond prompt and text: drafts, and the row of an off-by-one.
constexpr Pos kSpare = 4;
constexpr Pos kShortestContext = 12;

struct Lengths {
  Pos prompt, limit, pair;
  int steps;
};

Lengths lengths_of(const model::Model& model, const BreakOptions& options) {
  const bool large = is_large(model);
  const Pos context = model.config().context;
  Lengths n{};
  n.limit = std::min<Pos>(context, options.limit > 0 ? options.limit : large ? 32 : 128);
  n.prompt = std::min<Pos>(large ? 24 : 64, n.limit / 2);
  const int wanted = options.steps > 0 ? options.steps : large ? 24 : 100;
  n.steps = static_cast<int>(std::min<Pos>(wanted, context - n.prompt - kSpare));
  n.pair = std::min<Pos>(large ? 24 : 64, context - kSpare);
  return n;
}

Result<Subject> subject_of(const engine::Loaded& loaded, const BreakOptions& options, const KeepGoing& go) {
  const ModelConfig& config = loaded.model->config();
  if (config.context < kShortestContext) {
    return fail(Code::invalid_argument, fmt::format("{} has a context of {}, and {} are needed to show anything",
                                                    loaded.name, config.context, kShortestContext));
  }
  Subject subject;
  subject.loaded = &loaded;
  subject.go = go;
  const Lengths n = lengths_of(*loaded.model, options);
  subject.prompt = n.prompt;
  subject.limit = n.limit;
  subject.pair = n.pair;
  subject.steps = n.steps;
  subject.pad = config.eos.value_or(config.bos.value_or(0));
  if (loaded.tokenizer) {
    auto ids = loaded.tokenizer->encode(kText);
    if (ids && static_cast<Pos>(ids->size()) >= subject.limit) subject.text = std::move(*ids);
  }
  if (subject.text.empty()) subject.text = random_ids(config, subject.limit, options.seed, 2);
  return subject;
}

// Both of one sequence and over the same text.
void compare(const model::Model& model, const Played& right, const Played& wrong, BugReport& report) {
  report.distance = distances(model, right, wrong);
  const std::size_t bytes = static_cast<std::size_t>(model.config().vocab) * size_of(model.dtype());
  for (std::size_t t = 0; t < report.distance.size(); ++t) {
    const bool same =
        std::memcmp(right.logits.back().data() + t * bytes, wrong.logits.back().data() + t * bytes, bytes) == 0;
    if (!same && !report.first_logit) report.first_logit = static_cast<int>(t) + 1;
    if (!report.first_logit) continue;
    ++report.asked;
    if (right.ids.back()[t] == wrong.ids.back()[t]) ++report.agreeing;
  }
}

std::optional<std::string> text_of_ids(const engine::Loaded& loaded, const Ids& ids) {
  if (!loaded.tokenizer) return std::nullopt;
  auto text = loaded.tokenizer->decode(ids);
  if (!text) return std::nullopt;
  return std::move(*text);
}

Result<void> show_texts(const Bug& bug, const Subject& subject, BugReport& report) {
  const model::Model& model = subject.model();
  const Play right = bug.right(subject), wrong = bug.wrong(subject);
  auto before = play(model, right, subject.go);
  if (!before) return pass(before);
  auto beside = play(model, wrong, subject.go, &before->ids);
  if (!beside) return pass(beside);
  auto after = play(model, wrong, subject.go);
  if (!after) return pass(after);
  compare(model, *before, *beside, report);
  report.prompt = right.prompts.back();
  report.prompt_text = text_of_ids(*subject.loaded, report.prompt);
  report.ids_before = before->ids.back();
  report.ids_after = after->ids.back();
  report.text_before = text_of_ids(*subject.loaded, report.ids_before);
  report.text_after = text_of_ids(*subject.loaded, report.ids_after);
  report.repetition_before = repetition(report.ids_before);
  report.repetition_after = repetition(report.ids_after);
  const auto differ = std::mismatch(report.ids_before.begin(), report.ids_before.end(), report.ids_after.begin());
  if (differ.first != report.ids_before.end()) {
    report.first_token = static_cast<int>(differ.first - report.ids_before.begin()) + 1;
  }
  return {};
}

Result<void> show_asleep(const Bug& bug, const Subject& subject, BugReport& report) {
  for (const Asleep& one : bug.asleep(subject)) {
    auto with = play(subject.model(), one.with, subject.go);
    if (!with) return pass(with);
    auto without = play(subject.model(), one.without, subject.go);
    if (!without) return pass(without);
    Dormancy dormancy{one.when, 0, 0};
    for (std::size_t i = 0; i < with->logits.size(); ++i) {
      dormancy.compared += without->logits[i].size() / size_of(subject.model().dtype());
      dormancy.differing += compare_bits(with->logits[i], without->logits[i], subject.model().dtype()).differing;
    }
    report.dormant.push_back(std::move(dormancy));
  }
  return {};
}

// The pair of verify with and without the bug in one of its sides.
Result<void> show_caught(const Bug& bug, const Subject& subject, std::uint64_t seed, BugReport& report) {
  const model::Model& model = subject.model();
  const kernels::Target& target = kernels::targets().front();
  const auto pairs = all_pairs(model.weights(), target, false);
  const auto pair = std::find_if(pairs.begin(), pairs.end(), [&](const Spec& spec) { return spec.name == bug.pair; });
  if (pair == pairs.end()) return fail(Code::not_found, fmt::format("verify has no pair \"{}\"", bug.pair));
  Given given{subject.loaded,
              random_ids(model.config(), subject.pair, seed, 0),
              random_ids(model.config(), subject.pair, seed, 1),
              {},
              subject.go,
              &target,
              ragged,
              true};
  auto without = run_pair(*pair, given, model.weights());
  if (!without) return pass(without);
  bug.damage(given);
  auto with = run_pair(*pair, given, model.weights());
  if (!with) return pass(with);
  report.without = std::move(*without);
  report.with = std::move(*with);
  return {};
}

Result<BugReport> show(const Bug& bug, const Subject& subject, std::uint64_t seed) {
  BugReport report;
  report.name = bug.name;
  report.what = bug.what;
  report.injected = bug.injected;
  report.cure = bug.cure;
  report.model = subject.loaded->name;
  if (auto ok = show_texts(bug, subject, report); !ok) return pass(ok);
  if (auto ok = show_asleep(bug, subject, report); !ok) return pass(ok);
  if (auto ok = show_caught(bug, subject, seed, report); !ok) return pass(ok);
  if (bug.signature) {
    auto signature = bug.signature(subject, report);
    if (!signature) return pass(signature);
    report.signature = std::move(*signature);
  }
  return report;
}

Result<std::vector<Bug>> chosen(const std::vector<std::string>& names) {
  std::vector<Bug> all = all_bugs();
  for (const std::string& name : names) {
    if (std::none_of(all.begin(), all.end(), [&](const Bug& bug) { return bug.name == name; })) {
      std::string known;
      for (const Bug& bug : all) known += fmt::format("{}{}", known.empty() ? "" : ", ", bug.name);
      return fail(Code::invalid_argument, fmt::format("no bug is called \"{}\": there are {}", name, known));
    }
  }
  if (!names.empty()) {
    std::erase_if(all, [&](const Bug& bug) { return std::find(names.begin(), names.end(), bug.name) == names.end(); });
  }
  return all;
}

bool can_have(const ModelConfig& config, Bug::Needs needs) {
  if (needs == Bug::Needs::any) return true;
  return (needs == Bug::Needs::learned) == (config.family == "gpt2");
}

// The given model and those that stand in for it, each loaded when it is first needed.
class Stage {
 public:
  Stage(const BreakOptions& options, const BreakCallbacks& callbacks) : options_(options), callbacks_(callbacks) {}

  Result<const engine::Loaded*> model_for(Bug::Needs needs) {
    auto given = load(0, options_.model);
    if (!given || can_have((*given)->model->config(), needs)) return given;
    return needs == Bug::Needs::learned ? load(1, options_.learned) : load(2, options_.rotary);
  }

 private:
  Result<const engine::Loaded*> load(std::size_t place, const std::string& name) {
    if (!loaded_[place]) {
      auto loaded = engine::load(name, options_.dtype, [&](double fraction) {
        if (callbacks_.on_progress) {
          callbacks_.on_progress(fmt::format("loading {} {} %", name, static_cast<int>(fraction * 100)));
        }
        return !callbacks_.keep_going || callbacks_.keep_going();
      });
      if (!loaded) return pass(loaded);
      loaded_[place] = std::move(*loaded);
    }
    return &*loaded_[place];
  }

  const BreakOptions& options_;
  const BreakCallbacks& callbacks_;
  std::array<std::optional<engine::Loaded>, 3> loaded_;
};

}  // namespace

bool is_large(const model::Model& model) noexcept {
  return model.weight_bytes() > kLargeBytes;
}

std::vector<std::string> bug_names() {
  std::vector<std::string> names;
  for (const Bug& bug : all_bugs()) names.push_back(bug.name);
  return names;
}

bool BugReport::sleeps() const {
  return !dormant.empty() && std::all_of(dormant.begin(), dormant.end(), [](const auto& d) { return d.proven(); });
}

Result<BreakReport> break_model(const BreakOptions& options, const BreakCallbacks& callbacks) {
  auto bugs = chosen(options.bugs);
  if (!bugs) return pass(bugs);
  BreakReport report;
  report.model = options.model;
  report.dtype = options.dtype;
  report.seed = options.seed;
  Stage stage(options, callbacks);
  for (const Bug& bug : *bugs) {
    auto loaded = stage.model_for(bug.needs);
    if (!loaded) return pass(loaded);
    if (callbacks.on_progress) callbacks.on_progress(fmt::format("{} on {}", bug.name, (*loaded)->name));
    auto subject = subject_of(**loaded, options, callbacks.keep_going);
    if (!subject) return pass(subject);
    auto shown = show(bug, *subject, options.seed);
    if (!shown) return pass(shown);
    shown->stand_in = (*loaded)->name != options.model;
    if (callbacks.on_bug) callbacks.on_bug(*shown);
    report.bugs.push_back(std::move(*shown));
  }
  report.caught =
      std::all_of(report.bugs.begin(), report.bugs.end(), [](const auto& b) { return b.caught() && b.sleeps(); });
  return report;
}

}  // namespace stet::lab
