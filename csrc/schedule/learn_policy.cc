#include "schedule/learn_policy.h"

#include <algorithm>

namespace cavs {
namespace {

constexpr int32_t kMostKinds = 64;
constexpr int32_t kMostEpisodes = 1000, kFewestEpisodes = 60;
constexpr double kMostWork = 5e7;  // edges times kinds of all episodes
constexpr int32_t kRound = 20;     // episodes between two tests of the table
constexpr int32_t kPatience = 15;  // rounds without fewer tasks that end learning
constexpr double kRate = 0.4;      // at which values follow what an episode has shown
constexpr int32_t kSteps = 10;     // tasks whose rewards an episode sums, before a known value
constexpr double kFirstRandom = 0.5, kLeastRandom = 0.05, kDecay = 0.9;  // share of random choices

// The frontier of a batch, and for rewards those of the vertices of each kind alone.
//
// A vertex is clear of a kind once no vertex of it below has to run. The frontier of kind k alone
// holds the vertices of k that are clear of k.
class RewardedFrontier {
 public:
  explicit RewardedFrontier(const KindedGraph& graph)
      : graph_(graph), frontier_(graph), kinds_(graph.num_kinds()) {
    const int32_t n = graph.num_vertices();
    first_.assign(static_cast<size_t>(n) * kinds_, 0);
    for (const int32_t v : vertices_by_level(graph.graph)) {
      for (int32_t e = graph.graph.offsets[v]; e < graph.graph.offsets[v + 1]; ++e) {
        const int32_t child = graph.graph.children[e];
        for (int32_t k = 0; k < kinds_; ++k) {
          first_[at(v, k)] += graph.kind[child] == k || first_[at(child, k)] > 0;
        }
      }
    }
    first_alone_.assign(kinds_, 0);
    for (int32_t v = 0; v < n; ++v) {
      if (graph.kind[v] >= 0) first_alone_[graph.kind[v]] += first_[at(v, graph.kind[v])] == 0;
    }
  }

  void begin() {
    frontier_.begin();
    blocked_ = first_;
    alone_ = first_alone_;
  }
  bool empty() const { return frontier_.empty(); }
  // The set of ready kinds.
  uint64_t ready() const {
    uint64_t set = 0;
    for (int32_t k = 0; k < kinds_; ++k) set |= uint64_t{frontier_.ready(k) > 0} << k;
    return set;
  }
  // Run the ready vertices of a kind and return the reward.
  double run(int32_t kind) {
    const double share = static_cast<double>(frontier_.ready(kind)) / alone_[kind];
    for (const int32_t v : frontier_.run(kind)) {
      --alone_[kind];
      clear(v, kind);
    }
    return share - 1;
  }

 private:
  size_t at(int32_t v, int32_t kind) const { return static_cast<size_t>(v) * kinds_ + kind; }
  // Vertex v has become clear of a kind, and so may those above it.
  void clear(int32_t v, int32_t kind) {
    stack_.assign(1, v);
    while (!stack_.empty()) {
      const int32_t below = stack_.back();
      stack_.pop_back();
      for (int32_t i = graph_.parent_offsets[below]; i < graph_.parent_offsets[below + 1]; ++i) {
        const int32_t parent = graph_.parents[i];
        if (--blocked_[at(parent, kind)] > 0) continue;
        if (graph_.kind[parent] == kind) {
          ++alone_[kind];
        } else {
          stack_.push_back(parent);
        }
      }
    }
  }

  const KindedGraph& graph_;
  Frontier frontier_;
  int32_t kinds_;
  std::vector<int32_t> first_, blocked_;      // edges of a vertex to children not clear of a kind
  std::vector<int64_t> first_alone_, alone_;  // vertices in the frontier of each kind alone
  std::vector<int32_t> stack_;
};

// Expected rewards of the kinds that may run in one set of ready kinds; 0 until tried.
struct Values {
  double of[kMostKinds] = {};
  uint64_t tried = 0;
  int32_t best(uint64_t among) const {
    int32_t found = -1;
    for (int32_t kind = 0; kind < kMostKinds; ++kind) {
      if ((among >> kind & 1) != 0 && (found < 0 || of[kind] > of[found])) found = kind;
    }
    return found;
  }
};

// Bit i of a set is kind i of the batch.
class Learner {
 public:
  Learner(const KindedGraph& graph, uint64_t seed)
      : graph_(graph), frontier_(graph), random_(seed) {}

  // Replace the policy of `best` by better ones.
  void improve(LearnedPolicy& best) {
    const auto rows = static_cast<double>(graph_.parents.size() + graph_.kind.size());
    const double episodes = kMostWork / (rows * graph_.num_kinds());
    const auto most =
        static_cast<int32_t>(std::clamp<double>(episodes, kFewestEpisodes, kMostEpisodes));
    double random = kFirstRandom;
    int32_t rounds = 0;  // since the last table that is better
    while (best.episodes < most && best.tasks > best.bound && rounds++ < kPatience) {
      for (int32_t i = 0; i < kRound; ++i) run_episode(random);
      best.episodes += kRound;
      random = std::max(kLeastRandom, random * kDecay);
      SchedulingPolicy policy = found();
      const int64_t tasks = count_tasks(graph_, policy);
      if (tasks < best.tasks) {
        best.tasks = tasks;
        best.policy = std::move(policy);
        rounds = 0;
      }
    }
  }

 private:
  struct Move {
    Values* values;
    int32_t kind;
    double reward;
  };

  void run_episode(double random) {
    moves_.clear();
    for (frontier_.begin(); !frontier_.empty();) {
      const uint64_t ready = frontier_.ready();
      Values& values = values_[ready];
      const int32_t kind = draw() < random ? random_of(ready) : values.best(ready);
      moves_.push_back({&values, kind, frontier_.run(kind)});
    }
    // From the last task to the first, so that a value is known to those before.
    double sum = 0;  // sum of the rewards of the next kSteps tasks
    const auto n = static_cast<int32_t>(moves_.size());
    for (int32_t t = n - 1; t >= 0; --t) {
      sum += moves_[t].reward;
      double target = sum;
      if (t + kSteps < n) {
        sum -= moves_[t + kSteps].reward;
        const Values& after = *moves_[t + kSteps].values;
        target = sum + after.of[after.best(after.tried)];
      }
      Values& values = *moves_[t].values;
      double& value = values.of[moves_[t].kind];
      const bool is_new = (values.tried >> moves_[t].kind & 1) == 0;
      value = is_new ? target : value + kRate * (target - value);
      values.tried |= uint64_t{1} << moves_[t].kind;
    }
  }

  // The policy that chooses the kind of the highest value.
  SchedulingPolicy found() const {
    SchedulingPolicy policy{graph_.keys, {}};
    for (const auto& [ready, values] : values_) policy.choices[ready] = values.best(values.tried);
    return policy;
  }

  // SplitMix64.
  uint64_t bits() {
    uint64_t z = random_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  double draw() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  int32_t random_of(uint64_t set) {
    auto left = static_cast<int32_t>(bits() % static_cast<uint64_t>(__builtin_popcountll(set)));
    for (; left > 0; --left) set &= set - 1;
    return __builtin_ctzll(set);
  }

  const KindedGraph& graph_;
  RewardedFrontier frontier_;
  uint64_t random_;
  std::unordered_map<uint64_t, Values> values_;  // by set of ready kinds
  std::vector<Move> moves_;
};

}  // namespace

LearnedPolicy learn_policy(const KindedGraph& graph, uint64_t seed) {
  const int32_t kinds = graph.num_kinds();
  const int64_t bound = fewest_tasks(graph.graph, graph.kind, kinds);
  LearnedPolicy best{{}, count_tasks(graph, {}), bound, 0};
  if (best.tasks > bound && kinds <= kMostKinds) Learner(graph, seed).improve(best);
  return best;
}

}  // namespace cavs
