// Filters that go over lists: map, select, join, sort and their like.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/filters.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/text_operations.h"

namespace lockstep::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr std::string_view kListFilters[] = {
    "list",       "first",  "last", "join", "map", "select", "reject",  "selectattr",
    "rejectattr", "unique", "sort", "sum",  "min", "max",    "reverse", "dictsort"};

// "a.b.0": attributes and items, one in the other.
Result AttributePath(Value value, std::string_view path, WorkBudget& budget) {
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(path.data(), path.size()), '.')) {
    int64_t index = 0;
    const bool is_index = absl::SimpleAtoi(part, &index);
    const Value key = is_index ? Value::Of(index) : Value::Markup({part.data(), part.size()});
    ASSIGN_OR_RETURN(value, Item(value, key, budget));
  }
  return value;
}

Result Join(const List& list, ArgumentReader& arguments, WorkBudget& budget) {
  ASSIGN_OR_RETURN(const MarkedText separator,
                   ToText(arguments.NextOr("d", Value::Markup("")), budget));
  ASSIGN_OR_RETURN(const std::optional<MarkedText> attribute, arguments.NextText("attribute"));
  MarkedText joined;
  for (size_t i = 0; i < list.size(); ++i) {
    Value entry = list[i];
    if (attribute) {
      ASSIGN_OR_RETURN(entry, AttributePath(std::move(entry), attribute->text(), budget));
    }
    if (i > 0) joined.Append(separator);
    ASSIGN_OR_RETURN(const MarkedText text, ToText(entry, budget));
    RETURN_IF_ERROR(budget.TakeText(separator.size() + text.size()));
    joined.Append(text);
    if (joined.size() > WorkBudget::kMaxTextBytes) return budget.TakeText(joined.size());
  }
  return Value::Of(std::move(joined));
}

Result Map(const List& list, ArgumentReader& arguments, WorkBudget& budget) {
  std::optional<Value> filter = arguments.Next("");
  List mapped;
  if (filter) {
    if (!filter->is_text()) return absl::InvalidArgumentError("map wants the name of a filter");
    const Arguments rest = arguments.TakeRest();
    arguments = ArgumentReader({});
    for (const Value& entry : list) {
      ASSIGN_OR_RETURN(Value changed, ApplyFilter(filter->text()->text(), entry, rest, budget));
      mapped.push_back(std::move(changed));
    }
    return Value::Of(std::move(mapped));
  }
  ASSIGN_OR_RETURN(const std::optional<MarkedText> attribute, arguments.NextText("attribute"));
  if (!attribute) return absl::InvalidArgumentError("map wants a filter or an attribute");
  const std::optional<Value> otherwise = arguments.Next("default");
  for (const Value& entry : list) {
    ASSIGN_OR_RETURN(Value found, AttributePath(entry, attribute->text(), budget));
    mapped.push_back(found.is_undefined() && otherwise ? *otherwise : std::move(found));
  }
  return Value::Of(std::move(mapped));
}

// keeps: what passes, else what does not. by_attribute: of each entry that is looked at.
struct Selection {
  bool keeps = true;
  bool by_attribute = false;
};

Result Select(const List& list, Selection selection, ArgumentReader& arguments,
              WorkBudget& budget) {
  MarkedText attribute;
  if (selection.by_attribute) {
    ASSIGN_OR_RETURN(const std::optional<MarkedText> given, arguments.NextText("attribute"));
    if (!given) return absl::InvalidArgumentError("an attribute is missing");
    attribute = *given;
  }
  ASSIGN_OR_RETURN(const std::optional<MarkedText> test, arguments.NextText("test"));
  const Arguments rest = arguments.TakeRest();
  arguments = ArgumentReader({});
  List selected;
  for (const Value& entry : list) {
    Value looked_at = entry;
    if (selection.by_attribute) {
      ASSIGN_OR_RETURN(looked_at, AttributePath(entry, attribute.text(), budget));
    }
    bool passes = looked_at.IsTrue();
    if (test) {
      ASSIGN_OR_RETURN(passes, ApplyTest(test->text(), looked_at, rest, budget));
    }
    RETURN_IF_ERROR(budget.Take(1));
    if (passes == selection.keeps) selected.push_back(entry);
  }
  return Value::Of(std::move(selected));
}

// By what entries are compared: an attribute of theirs, and text without case unless it counts.
struct Ordering {
  std::optional<MarkedText> attribute;
  bool has_case = false;

  Result KeyOf(const Value& entry, WorkBudget& budget) const {
    Value key = entry;
    if (attribute) {
      ASSIGN_OR_RETURN(key, AttributePath(entry, attribute->text(), budget));
    }
    if (has_case || !key.is_text()) return key;
    return Value::Of(WithCase(*key.text(), Case::kLower));
  }
};

absl::StatusOr<List> Sorted(List list, const Ordering& ordering, bool reverse, WorkBudget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& entry : list) {
    ASSIGN_OR_RETURN(Value key, ordering.KeyOf(entry, budget));
    keyed.emplace_back(std::move(key), std::move(entry));
  }
  absl::Status status;
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    if (!status.ok()) return false;
    const auto less =
        reverse ? Compare("<", b.first, a.first, budget) : Compare("<", a.first, b.first, budget);
    status.Update(less.status());
    return less.value_or(false);
  });
  RETURN_IF_ERROR(status);
  List sorted;
  for (auto& [key, entry] : keyed) sorted.push_back(std::move(entry));
  return sorted;
}

Result Sort(List list, ArgumentReader& arguments, WorkBudget& budget) {
  const bool reverse = arguments.NextOr("reverse", Value::Of(false)).IsTrue();
  Ordering ordering;
  ordering.has_case = arguments.NextOr("case_sensitive", Value::Of(false)).IsTrue();
  ASSIGN_OR_RETURN(ordering.attribute, arguments.NextText("attribute"));
  ASSIGN_OR_RETURN(List sorted, Sorted(std::move(list), ordering, reverse, budget));
  return Value::Of(std::move(sorted));
}

Result DictSort(const Value& input, ArgumentReader& arguments, WorkBudget& budget) {
  if (input.dict() == nullptr) return absl::InvalidArgumentError("dictsort wants a dict");
  Ordering ordering;
  ordering.has_case = arguments.NextOr("case_sensitive", Value::Of(false)).IsTrue();
  ASSIGN_OR_RETURN(const MarkedText by,
                   ToText(arguments.NextOr("by", Value::Markup("key")), budget));
  ordering.attribute = MarkedText(by.text() == "value" ? "1" : "0", /*is_markup=*/true);
  const bool reverse = arguments.NextOr("reverse", Value::Of(false)).IsTrue();
  ASSIGN_OR_RETURN(const Value items, ApplyFilter("items", input, {}, budget));
  ASSIGN_OR_RETURN(List sorted, Sorted(*items.list(), ordering, reverse, budget));
  return Value::Of(std::move(sorted));
}

Result Unique(const List& list, ArgumentReader& arguments, WorkBudget& budget) {
  Ordering ordering;
  ordering.has_case = arguments.NextOr("case_sensitive", Value::Of(false)).IsTrue();
  ASSIGN_OR_RETURN(ordering.attribute, arguments.NextText("attribute"));
  List seen, unique;
  for (const Value& entry : list) {
    ASSIGN_OR_RETURN(Value key, ordering.KeyOf(entry, budget));
    RETURN_IF_ERROR(budget.TakeComparisons(seen.size(), key.weight()));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& a) { return Equal(a, key); })) {
      continue;
    }
    seen.push_back(std::move(key));
    unique.push_back(entry);
  }
  return Value::Of(std::move(unique));
}

Result Extreme(const List& list, bool largest, ArgumentReader& arguments, WorkBudget& budget) {
  Ordering ordering;
  ordering.has_case = arguments.NextOr("case_sensitive", Value::Of(false)).IsTrue();
  ASSIGN_OR_RETURN(ordering.attribute, arguments.NextText("attribute"));
  if (list.empty()) return Value::OfUndefined("the extreme of nothing");
  Value best = list.front();
  ASSIGN_OR_RETURN(Value best_key, ordering.KeyOf(best, budget));
  for (const Value& entry : list) {
    ASSIGN_OR_RETURN(Value key, ordering.KeyOf(entry, budget));
    ASSIGN_OR_RETURN(const bool is_better, Compare(largest ? ">" : "<", key, best_key, budget));
    if (!is_better) continue;
    best = entry;
    best_key = std::move(key);
  }
  return best;
}

Result Sum(const List& list, ArgumentReader& arguments, WorkBudget& budget) {
  ASSIGN_OR_RETURN(const std::optional<MarkedText> attribute, arguments.NextText("attribute"));
  Value sum = arguments.NextOr("start", Value::Of(int64_t{0}));
  for (const Value& entry : list) {
    Value term = entry;
    if (attribute) {
      ASSIGN_OR_RETURN(term, AttributePath(entry, attribute->text(), budget));
    }
    ASSIGN_OR_RETURN(sum, Arithmetic("+", sum, term, budget));
  }
  return sum;
}

}  // namespace

bool IsListFilter(std::string_view name) {
  return std::find(std::begin(kListFilters), std::end(kListFilters), name) !=
         std::end(kListFilters);
}

absl::StatusOr<Value> ApplyListFilter(std::string_view name, const Value& input,
                                      ArgumentReader& arguments, WorkBudget& budget) {
  if (name == "dictsort") return DictSort(input, arguments, budget);
  // Those that Jinja computes lazily take nothing, of whatever type, for an empty list.
  const bool is_lazy = name == "map" || name.starts_with("select") || name.starts_with("reject");
  List list;
  if (!is_lazy || input.IsTrue()) {
    ASSIGN_OR_RETURN(list, Iterate(input, budget));
  }
  if (name == "list") return Value::Of(std::move(list));
  if (name == "first") return list.empty() ? Value::OfUndefined("first") : list.front();
  if (name == "last") return list.empty() ? Value::OfUndefined("last") : list.back();
  if (name == "join") return Join(list, arguments, budget);
  if (name == "map") return Map(list, arguments, budget);
  if (name == "select") return Select(list, {true, false}, arguments, budget);
  if (name == "reject") return Select(list, {false, false}, arguments, budget);
  if (name == "selectattr") return Select(list, {true, true}, arguments, budget);
  if (name == "rejectattr") return Select(list, {false, true}, arguments, budget);
  if (name == "unique") return Unique(list, arguments, budget);
  if (name == "sort") return Sort(std::move(list), arguments, budget);
  if (name == "sum") return Sum(list, arguments, budget);
  if (name == "min") return Extreme(list, /*largest=*/false, arguments, budget);
  if (name == "max") return Extreme(list, /*largest=*/true, arguments, budget);
  std::reverse(list.begin(), list.end());
  if (!input.is_text()) return Value::Of(std::move(list));
  MarkedText text;
  for (const Value& character : list) text.Append(*character.text());
  return Value::Of(std::move(text));
}

}  // namespace lockstep::jinja
