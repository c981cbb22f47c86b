// The table of bugs: how each is played, where it sleeps and which pair of verify finds it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/break.hpp"
#include "lab/break_play.hpp"
#include "lab/pairs.hpp"

namespace stet::lab {

/// What a bug is shown on.
struct Subject {
  const engine::Loaded* loaded = nullptr;
  Ids text;         // to take prompts from; as long as the longest of them
  Pos prompt = 0;   // tokens of a usual prompt
  int steps = 0;    // new tokens of a text
  Pos limit = 0;    // where a sliding cache begins to slide
  Pos pair = 0;     // tokens of verify's pair
  TokenId pad = 0;  // what prompts are filled up with
  KeepGoing go;

  const model::Model& model() const { return *loaded->model; }
  Ids first(Pos n) const { return {text.begin(), text.begin() + n}; }
  /// One prompt, continued.
  Play plain() const;
};

struct Asleep {
  std::string when;
  Play with, without;
};

struct Bug {
  enum class Needs : std::uint8_t { any, learned, rotary };  // positions
  std::string name, what, injected, cure;
  Needs needs = Needs::any;
  std::function<Play(const Subject&)> right, wrong;
  std::function<std::vector<Asleep>(const Subject&)> asleep;
  std::string pair;
  std::function<void(Given&)> damage;  // puts the bug into the pair
  std::function<Result<std::vector<Signature>>(const Subject&, const BugReport&)> signature;  // may be empty
};

std::vector<Bug> all_bugs();

/// What layer 0's attention puts out for the last of `ids`, which comes alone, after all others in one step: query
/// heads side by side; and the values of position 0 laid out alike. At least two ids. Code::corrupt: attention put out
/// something that is not finite, or not for every head; and errors as of Cache and Model.
struct Attention {
  std::vector<double> out, first_value;
};
Result<Attention> attention_of(const model::Model& model, const Ids& ids, const Wrap& wrap);

}  // namespace stet::lab
