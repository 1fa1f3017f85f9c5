// The built-in tables, as the text of deploy/plan/data/*.json. Any thread.
#pragma once

#include <string_view>

namespace lockstep::plan {

std::string_view GpusJson();
std::string_view ModelsJson();
std::string_view PricesJson();
std::string_view EnginesJson();
std::string_view CollectivesJson();

}  // namespace lockstep::plan
