#include "sample/stop.hpp"

#include <algorithm>
#include <utility>

namespace stet::sample {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Automaton automaton{std::move(stop), {0, 0}, 0};
    for (std::size_t n = 1; n < automaton.stop.size(); ++n) {
      automaton.matched = step(automaton, automaton.stop[n]);
      automaton.border.push_back(automaton.matched);
    }
    automaton.matched = 0;
    automata_.push_back(std::move(automaton));
  }
}

std::size_t StopMatcher::step(const Automaton& automaton, char byte) noexcept {
  std::size_t matched = automaton.matched;
  while (matched > 0 && automaton.stop[matched] != byte) matched = automaton.border[matched];
  return automaton.stop[matched] == byte ? matched + 1 : 0;
}

StopMatcher::Out StopMatcher::push(std::string_view piece) {
  if (stopped_) return {"", true};
  const std::size_t before = held_.size();
  held_ += piece;
  for (std::size_t i = before; i < held_.size(); ++i) {
    std::size_t longest = 0;
    for (Automaton& automaton : automata_) {
      automaton.matched = step(automaton, held_[i]);
      if (automaton.matched == automaton.stop.size()) longest = std::max(longest, automaton.matched);
    }
    if (longest > 0) {
      stopped_ = true;
      held_.resize(i + 1 - longest);
      return {std::exchange(held_, {}), true};
    }
  }
  std::size_t keep = 0;
  for (const Automaton& automaton : automata_) keep = std::max(keep, automaton.matched);
  Out out{held_.substr(0, held_.size() - keep), false};
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopMatcher::finish() {
  for (Automaton& automaton : automata_) automaton.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace stet::sample
