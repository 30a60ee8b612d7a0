use autobwd::OpInfo;

fn main() {
    let _ = |info: &OpInfo| info.lanes;
}
