"""Overlay videos: what they show, and that browsers play them."""

import cv2
import numpy as np
import pytest

from prediction import films
from support.errors import InputError


def frames(size: tuple[int, int], number: int) -> list[np.ndarray]:
    """Grey frames whose last row is green and last column blue."""
    frame = np.full((*size, 3), 90, np.uint8)
    frame[-1:], frame[:, -1:] = (0, 255, 0), (0, 0, 255)
    return [frame] * number


def decoded(path) -> list[np.ndarray]:
    video, found = cv2.VideoCapture(str(path)), []
    while (read := video.read())[0]:
        found.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
    return found


@pytest.mark.parametrize("codecs", [films.CODECS, (("none", ".webm"), ("mp4v", ".mp4"))])
@pytest.mark.parametrize("size", [(48, 64), (49, 65)])
def test_every_row_and_column_is_kept_by_the_first_codec_that_works(tmp_path, monkeypatch, capfd, size, codecs):
    monkeypatch.setattr(films, "CODECS", codecs)
    path = films.write_film(tmp_path / "film.name", frames(size, 5), 10.0)
    assert path.name in ("film.name.mp4", "film.name.webm")[: 1 + (codecs[0][0] != "none")]
    assert capfd.readouterr().err == ""
    found = decoded(path)
    assert [frame.shape for frame in found] == [(size[0] + size[0] % 2, size[1] + size[1] % 2, 3)] * 5
    if size == (49, 65):  # the last row, green, is repeated, so that no colour of others is mixed in
        assert found[0][48, 20].argmax() == 1
        assert found[0][20, 64].argmax() == 2
    assert list(tmp_path.iterdir()) == [path]


def test_no_codec_is_an_error(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(films, "CODECS", (("none", ".webm"),))
    with pytest.raises(InputError, match="OpenCV cannot write a video of 64x48 pixels"):
        films.write_film(tmp_path / "film", frames((48, 64), 3), 10.0)
    assert capfd.readouterr().err == ""


def test_a_browser_plays_it(browser, tmp_path):
    path = films.write_film(tmp_path / "film", frames((49, 65), 20), 10.0)
    if path.suffix != ".webm":
        pytest.skip("OpenCV here does not encode VP8")
    (tmp_path / "page.html").write_text(f"<video muted src={path.name}></video>")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    play = "video => video.play().then(() => [video.videoWidth, video.videoHeight], error => String(error))"
    assert page.locator("video").evaluate(play) == [66, 50]
    page.close()
