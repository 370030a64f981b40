//! The values that both sides write.

/// Ids, flags and values of one context.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
    pub(crate) flags: u8,
    pub(crate) local_root: [u8; 8],
    pub(crate) route: &'static str,
    pub(crate) user: &'static str,
}

/// Accessed through `black_box` each time, so that neither side knows it at compile time.
pub(crate) static INPUT: Input = Input {
    trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes(),
    span_id: 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes(),
    flags: 1,
    local_root: 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes(),
    route: "/api/v1/cart",
    user: "4711",
};
