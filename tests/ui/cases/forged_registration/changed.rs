use autobwd::{op::GradKind, OpInfoMap};

fn main() -> autobwd::Result<()> {
    let mut info = OpInfoMap::linked()?.get("square")?;
    info.grad_kind = GradKind::Zero;
    Ok(())
}
