//! Everything that is generated finds autobwd under its other name.

// Backward parts add gradients up with `sum`.
use autobwd_ops as _;

bwd::check_all!(autobwd_renamed);
