"""The commands of `moeprune`, grouped by what they work on."""
