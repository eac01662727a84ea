# Stage 06 as a server, on the CPU:
#   docker build -t llm-serving-course . && docker run --rm -p 8000:8000 llm-serving-course
# Another model: docker run ... llm-serving-course serve 06 --host 0.0.0.0 --model smollm2
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 course
WORKDIR /course
COPY requirements.txt .
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -r requirements.txt
COPY --chown=course . .

USER 1000
# .venv is not needed: all packages are in the image.
ENV COURSE_NO_VENV=1
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["python", "course.py"]
CMD ["serve", "06", "--host", "0.0.0.0"]
