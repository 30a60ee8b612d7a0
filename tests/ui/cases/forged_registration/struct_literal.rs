use autobwd::op::{GradKind, OpInfo};

fn main() {
    let _ = OpInfo { grad_kind: GradKind::Zero, lanes: None, krate: "mine", version: "1.0.0" };
}
