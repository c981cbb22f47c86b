#include "lab/eval_score.hpp"

#include <cmath>

#include "sample/weights.hpp"

namespace stet::lab {
namespace {

// Probabilities of a row by log-softmax in double.
struct Softmax {
  std::vector<double> x, p;  // logits; probabilities
  double largest = 0, log_sum = 0;
  std::size_t top = 0;

  double log_p(std::size_t i) const { return x[i] - largest - log_sum; }
};

bool all_finite(const std::vector<double>& x) {
  return std::all_of(x.begin(), x.end(), [](double v) { return std::isfinite(v); });
}

Softmax softmax(std::vector<double> x) {
  Softmax s;
  s.x = std::move(x);
  s.p.resize(s.x.size());
  s.top = static_cast<std::size_t>(std::max_element(s.x.begin(), s.x.end()) - s.x.begin());
  s.largest = s.x[s.top];
  sample::weights(s.x.data(), s.x.size(), s.largest, 1, s.p.data());
  double sum = 0;
  for (const double e : s.p) sum += e;
  for (double& e : s.p) e /= sum;
  s.log_sum = std::log(sum);  // libm's: this is a report, whose last digits nobody compares
  return s;
}

}  // namespace

Score score(std::vector<double> reference, std::vector<double> other, std::size_t next) {
  Score score;
  score.finite = all_finite(reference) && all_finite(other);
  if (!score.finite) return score;
  const Softmax a = softmax(std::move(reference)), b = softmax(std::move(other));
  score.nll_reference = -a.log_p(next);
  score.nll = -b.log_p(next);
  score.same_top = a.top == b.top;
  for (std::size_t i = 0; i < a.x.size(); ++i) {
    score.kl += a.p[i] * (a.log_p(i) - b.log_p(i));
    score.distance = std::max(score.distance, std::abs(a.x[i] - b.x[i]));
    score.largest = std::max(score.largest, std::abs(a.x[i]));
  }
  score.kl = std::max(score.kl, 0.0);  // it is not negative; rounding can make it so by 1e-16
  return score;
}

}  // namespace stet::lab
