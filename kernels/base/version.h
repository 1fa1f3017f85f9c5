// Which program this is.
#pragma once

namespace lockstep {

// "0.1.0+3f2a91c04b7d": the second part is a hash of the product's sources. The program, its
// plugin and ranks on other hosts exchange memory as it lies, so that they must be of one.
const char* Version();

}  // namespace lockstep
