//! Devices of XLA, by the C interface of PJRT plugins.
