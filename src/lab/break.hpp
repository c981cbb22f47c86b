// The bugs that everyone writes into a KV cache, each put into place and shown: what it does to a text, where it hides,
// and the pair of verify that finds it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/verify.hpp"
#include "report/report.hpp"

namespace stet::lab {

struct BreakOptions {
  std::string model;
  std::string learned = "random:char", rotary = "random:llama-tiny";  // for bugs that the model cannot have
  std::vector<std::string> bugs;                                      // empty: all, in the order of bug_names()
  DType dtype = DType::f32;
  int steps = 0;  // new tokens of each text; 0: 100, or 24 for large models
  Pos limit = 0;  // where the sliding cache slides; 0: the context, at most 128, or 32 for large models
  std::uint64_t seed = 0;
};

/// In the order that they are shown in.
std::vector<std::string> bug_names();

/// Two plays that must be equal to the bit: there the bug sleeps.
struct Dormancy {
  std::string when;
  std::size_t compared = 0, differing = 0;  // logits
  bool proven() const { return compared > 0 && differing == 0; }
};

/// A number that belongs to one bug: "|wrong - v0| = 0".
struct Signature {
  std::string field, words;  // for programs and for people
  double value = 0;
};

struct BugReport {
  std::string name, what, injected, cure;
  std::string model;      // shown on
  bool stand_in = false;  // since the given model cannot have it
  std::vector<TokenId> prompt;
  std::optional<std::string> prompt_text;
  std::vector<Dormancy> dormant;

  // Texts as they are made, without and with the bug; text only where there is a tokenizer.
  std::vector<TokenId> ids_before, ids_after;
  std::optional<std::string> text_before, text_after;
  double repetition_before = 0, repetition_after = 0;  // share of 4-grams that the text had before
  std::optional<int> first_token;                      // that differs, counted from 1

  // Step by step over the right text: largest distance of a logit (infinite where one is not finite), and whether the
  // most likely token is the same.
  std::vector<double> distance;
  std::optional<int> first_logit;  // new token, from 1, whose logits are other bits
  int agreeing = 0, asked = 0;     // of the steps at which the bug can show

  std::vector<Signature> signature;
  Pair with, without;  // the same pair of verify

  bool sleeps() const;
  bool caught() const { return with.differing > 0 && without.equal(); }
};

struct BreakReport {
  std::string model;
  DType dtype = DType::f32;
  std::uint64_t seed = 0;
  std::vector<BugReport> bugs;
  bool caught = false;  // every one, and each slept where it must
};

struct BreakCallbacks {
  std::function<void(const BugReport&)> on_bug;
  std::function<void(std::string_view)> on_progress;
  std::function<bool()> keep_going;  // false: Code::interrupted
};

/// Whether texts and limits are short by default: models of this size take their time.
bool is_large(const model::Model& model) noexcept;

/// Code::invalid_argument names a bug that there is not, or a context too short to show anything; and what loading a
/// model can say.
Result<BreakReport> break_model(const BreakOptions& options, const BreakCallbacks& callbacks);

/// A few lines on one bug, as a terminal shows them.
std::string words_of(const BugReport& bug);
report::Table table_of(const BreakReport& report);
report::Report report_of(const BreakReport& report);

}  // namespace stet::lab
