//! StableHLO text from programs: each operator by its rule, its formula or its composition.
