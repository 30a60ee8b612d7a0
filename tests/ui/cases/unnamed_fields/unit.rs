use autobwd::{NoGrad, OpDesc, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Nothing<V = Var>;

fn main() {
    let _ = |op: Nothing| OpDesc::from(op);
}
